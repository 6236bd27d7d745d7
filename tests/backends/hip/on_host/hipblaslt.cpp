// hipBLASLt on the host: numbered solutions of one reference product, in the C interface and in the C++ extension's
// free functions. The heuristic and the extension's list each have solutions that the other lacks; one solution
// is wrong, one fails when it runs, one is supported for no problem.
#include <cstdlib>
#include <string>
#include <vector>

#include "gemm.h"
#include "shim.h"

enum hipblasOperation_t : int { HIPBLAS_OP_N = 111, HIPBLAS_OP_T = 112 };
enum hipDataType : int { kFirstType = 0 };
enum hipblasComputeType_t : int { kFirstCompute = 0 };
enum hipblasStatus_t : int { kSuccess = 0, kInvalidValue = 3, kNotSupported = 7 };

struct _hipblasLtMatmulAlgo_t {
    uint8_t data[16];
    size_t max_workspace_bytes;
};
struct _hipblasLtMatmulHeuristicResult_t {
    _hipblasLtMatmulAlgo_t algo;
    size_t workspaceSize;
    hipblasStatus_t state;
    float wavesCount;
    int reserved[4];
};
struct hipblasLtMatmulDescOpaque_t {
    int compute, scale_type;
    int trans_a = HIPBLAS_OP_N, trans_b = HIPBLAS_OP_N, epilogue = 1, bias_type = -1;
    void *bias = nullptr, *scale_a = nullptr, *scale_b = nullptr, *scale_d = nullptr;
    int mode_a = 0, mode_b = 0;
};
struct hipblasLtMatrixLayoutOpaque_t {
    gemm::Matrix matrix;
    int batch = 1;
};
struct Preference {
    size_t workspace = 0;
};

extern "C" int hipGetDeviceCount(int*);

namespace {

using Algo = _hipblasLtMatmulAlgo_t;
using Result = _hipblasLtMatmulHeuristicResult_t;
using Desc = hipblasLtMatmulDescOpaque_t;
using Layout = hipblasLtMatrixLayoutOpaque_t;

struct Numbered {
    int index;
    gemm::Way way;
    size_t workspace;
    bool listed, picked, supported;  // by getAllAlgos(), by the heuristic, for any problem
};
constexpr Numbered kSolutions[] = {
    {101, gemm::kThrice, 0, true, true, true},        {102, gemm::kOnce, 0, true, false, true},
    {103, gemm::kTwice, 0, true, true, true},        {104, gemm::kOnce, 4u << 20, true, false, true},
    {105, gemm::kDropsLastK, 0, true, false, true},  {106, gemm::kFails, 0, true, false, true},
    {107, gemm::kOnce, 1u << 20, false, true, true}, {108, gemm::kOnce, 0, true, false, false},
};
constexpr int kPicked[] = {103, 101, 107};  // in the heuristic's order: not the fastest first

const Numbered* numbered(int index) {
    for (const Numbered& one : kSolutions)
        if (one.index == index) return &one;
    return nullptr;
}

int index_of(const Algo& algo) {
    int index;
    std::memcpy(&index, algo.data, sizeof index);
    return index;
}

Result result_of(const Numbered& one) {
    Result made{};
    std::memcpy(made.algo.data, &one.index, sizeof one.index);
    made.algo.max_workspace_bytes = made.workspaceSize = one.workspace;
    return made;
}

bool knows(int type) {
    return type == gemm::kFp32 || type == gemm::kFp16 || type == gemm::kBf16 || type == gemm::kInt8 ||
           type == gemm::kE4m3Fnuz || type == gemm::kE5m2Fnuz || type == gemm::kFp64;
}
bool stores(int type) {
    return type == gemm::kFp32 || type == gemm::kFp16 || type == gemm::kBf16 || type == gemm::kInt32 ||
           type == gemm::kInt8 || type == gemm::kFp64;
}

void need_device() {
    int count = 0;
    if (hipGetDeviceCount(&count) || !count) std::exit(1);  // as the genuine library does
}

}  // namespace

extern "C" {

hipblasStatus_t hipblasLtCreate(void** handle) {
    need_device();
    *handle = new int(1);
    return static_cast<hipblasStatus_t>(shim::fault("hipblasLtCreate"));
}
hipblasStatus_t hipblasLtDestroy(void* handle) {
    delete static_cast<int*>(handle);
    return kSuccess;
}
hipblasStatus_t hipblasLtGetVersion(void*, int* version) {
    *version = static_cast<int>(shim::number("GEMMTUNE_SHIM_LT_VERSION", 100202));
    return static_cast<hipblasStatus_t>(shim::fault("hipblasLtGetVersion"));
}
hipblasStatus_t hipblasLtGetGitRevision(void*, char* revision) {
    std::strcpy(revision, shim::setting("GEMMTUNE_SHIM_LT_REVISION", "dabb6df2b9").c_str());
    return kSuccess;
}

hipblasStatus_t hipblasLtMatrixLayoutCreate(Layout** layout, hipDataType type, uint64_t rows, uint64_t columns, int64_t ld) {
    *layout = new Layout{{type, static_cast<int64_t>(rows), static_cast<int64_t>(columns), ld, 0, nullptr}};
    return kSuccess;
}
hipblasStatus_t hipblasLtMatrixLayoutDestroy(Layout* layout) {
    delete layout;
    return kSuccess;
}
hipblasStatus_t hipblasLtMatrixLayoutSetAttribute(Layout* layout, int attribute, const void* value, size_t size) {
    if (attribute == 0 && size == 4) std::memcpy(&layout->batch, value, 4);
    else if (attribute == 1 && size == 8) std::memcpy(&layout->matrix.stride, value, 8);
    else return kInvalidValue;
    return kSuccess;
}
hipblasStatus_t hipblasLtMatmulDescCreate(Desc** desc, hipblasComputeType_t compute, hipDataType scale_type) {
    *desc = new Desc{compute, scale_type};
    return kSuccess;
}
hipblasStatus_t hipblasLtMatmulDescDestroy(Desc* desc) {
    delete desc;
    return kSuccess;
}
hipblasStatus_t hipblasLtMatmulDescSetAttribute(Desc* desc, int attribute, const void* value, size_t size) {
    const auto take = [&](auto& field) {
        if (size != sizeof field) return kInvalidValue;
        std::memcpy(&field, value, size);
        return kSuccess;
    };
    switch (attribute) {
        case 0: return take(desc->trans_a);
        case 1: return take(desc->trans_b);
        case 2: return take(desc->epilogue);
        case 3: return take(desc->bias);
        case 4: return take(desc->bias_type);
        case 5: return take(desc->scale_a);
        case 6: return take(desc->scale_b);
        case 8: return take(desc->scale_d);
        case 31: return take(desc->mode_a);
        case 32: return take(desc->mode_b);
        default: return kInvalidValue;
    }
}
hipblasStatus_t hipblasLtMatmulPreferenceCreate(Preference** preference) {
    *preference = new Preference;
    return kSuccess;
}
hipblasStatus_t hipblasLtMatmulPreferenceDestroy(Preference* preference) {
    delete preference;
    return kSuccess;
}
hipblasStatus_t hipblasLtMatmulPreferenceSetAttribute(Preference* preference, int attribute, const void* value, size_t size) {
    if (attribute != 1 || size != sizeof preference->workspace) return kInvalidValue;
    std::memcpy(&preference->workspace, value, size);
    return kSuccess;
}
hipblasStatus_t hipblasLtMatmulAlgoGetHeuristic(void*, Desc*, Layout* a, Layout*, Layout*, Layout* d, Preference* preference,
                                                int wanted, Result* results, int* count) {
    *count = 0;
    if (const int wrong = shim::fault("hipblasLtMatmulAlgoGetHeuristic")) return static_cast<hipblasStatus_t>(wrong);
    if (!knows(a->matrix.type) || !stores(d->matrix.type)) return kNotSupported;
    for (const int index : kPicked) {
        const Numbered& one = *numbered(index);
        if (*count < wanted && one.workspace <= preference->workspace) results[(*count)++] = result_of(one);
    }
    return kSuccess;
}

hipblasStatus_t hipblasLtMatmul(void*, Desc* desc, const void* alpha, const void* a, Layout* la, const void* b, Layout* lb,
                                const void* beta, const void* c, Layout* lc, void* d, Layout* ld, const Algo* algo,
                                void* workspace, size_t workspace_bytes, void* stream) {
    if (const int wrong = shim::fault("hipblasLtMatmul")) return static_cast<hipblasStatus_t>(wrong);
    const Numbered* const one = algo ? numbered(index_of(*algo)) : nullptr;
    if (!one || !one->supported) return kNotSupported;
    if (workspace_bytes < one->workspace || (one->workspace && !workspace)) return kInvalidValue;
    gemm::Problem p;
    p.a = la->matrix, p.b = lb->matrix, p.c = lc->matrix, p.d = ld->matrix;
    p.a.data = a, p.b.data = b, p.c.data = c, p.d.data = d;
    p.transposed_a = desc->trans_a != HIPBLAS_OP_N, p.transposed_b = desc->trans_b != HIPBLAS_OP_N;
    p.batch = ld->batch;
    if (desc->scale_type == gemm::kFp64)
        p.alpha = *static_cast<const double*>(alpha), p.beta = *static_cast<const double*>(beta);
    else if (desc->scale_type == gemm::kInt32)
        p.alpha = *static_cast<const int32_t*>(alpha), p.beta = *static_cast<const int32_t*>(beta);
    else p.alpha = *static_cast<const float*>(alpha), p.beta = *static_cast<const float*>(beta);
    p.activation = desc->epilogue & (2 | 32 | 65536);
    if (desc->epilogue & 4) p.bias = desc->bias, p.bias_type = desc->bias_type < 0 ? ld->matrix.type : desc->bias_type;
    p.scale_a = static_cast<float*>(desc->scale_a), p.scale_b = static_cast<float*>(desc->scale_b);
    p.scale_d = static_cast<float*>(desc->scale_d), p.outer_a = desc->mode_a == 3, p.outer_b = desc->mode_b == 3;
    // fp32 is rocBLAS's: none of these is as fast as its best.
    const bool slow = la->matrix.type == gemm::kFp32 && one->way == gemm::kOnce;
    std::function<const char*()> work = [p, way = slow ? gemm::kTwice : one->way] { return gemm::run(p, way); };
    return gemmtune_shim_queue(stream, &work) ? kInvalidValue : kSuccess;
}

}  // extern "C"

#if !defined(WITHOUT_EXTENSION)
namespace hipblaslt_ext {

enum class GemmType { kGemm = 1, kGrouped = 2 };

hipblasStatus_t getAllAlgos(void*, GemmType, hipblasOperation_t, hipblasOperation_t, hipDataType a, hipDataType, hipDataType,
                            hipDataType d, hipblasComputeType_t, std::vector<Result>& results) {
    if (const int wrong = shim::fault("getAllAlgos")) return static_cast<hipblasStatus_t>(wrong);
    results.clear();
    if (!knows(a) || !stores(d)) return kSuccess;
    for (const Numbered& one : kSolutions)
        if (one.listed && (gemm::sound(one.way) || shim::number("GEMMTUNE_SHIM_BAD", 1))) results.push_back(result_of(one));
    return kSuccess;
}
hipblasStatus_t matmulIsAlgoSupported(void*, Desc*, const void*, Layout*, Layout*, const void*, Layout*, Layout*, Algo& algo,
                                      size_t& workspace) {
    const Numbered* const one = numbered(index_of(algo));
    workspace = one ? one->workspace : 0;
    return one && one->supported ? kSuccess : kInvalidValue;
}
hipblasStatus_t getAlgosFromIndex(void*, std::vector<int>& indices, std::vector<Result>& results) {
    results.clear();
    for (const int index : indices)
        if (const Numbered* const one = numbered(index)) results.push_back(result_of(*one));
    return results.empty() ? kInvalidValue : kSuccess;
}
int getIndexFromAlgo(Algo& algo) { return index_of(algo); }
std::string getKernelNameFromAlgo(void*, Algo& algo) {
    return "Cijk_Ailk_Bljk_kernel_of_the_host_number_" + std::to_string(index_of(algo));
}
std::string getSolutionNameFromAlgo(void*, Algo& algo) {
    return "Cijk_Ailk_Bljk_solution_of_the_host_number_" + std::to_string(index_of(algo));
}

}  // namespace hipblaslt_ext
#endif
