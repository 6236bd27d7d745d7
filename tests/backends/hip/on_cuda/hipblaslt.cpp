// hipBLASLt on cuBLASLt: a solution's index is a rank among the answers of cuBLASLt's heuristic for the problem at hand,
// from 1 on; an algorithm's 24 bytes hold the index alone. Types, layouts and epilogues have the same numbers in both.
#include <cstdint>
#include <cstring>
#include <map>
#include <string>
#include <tuple>
#include <vector>

#include "../on_host/shim.h"
#include "cuda_library.h"

enum hipblasOperation_t : int { HIPBLAS_OP_N = 111, HIPBLAS_OP_T = 112 };
enum hipDataType : int { kFirstType = 0 };
enum hipblasComputeType_t : int { kFirstCompute = 0 };
enum hipblasStatus_t : int { kSuccess = 0, kInvalidValue = 3, kExecutionFailed = 5, kInternalError = 6, kNotSupported = 7 };

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

namespace {

using Handle = void*;
using Algo = _hipblasLtMatmulAlgo_t;
using Result = _hipblasLtMatmulHeuristicResult_t;

// cublasLtMatmulHeuristicResult_t
struct CudaResult {
    uint64_t algo[8];
    size_t workspace;
    int state;
    float waves;
    int reserved[4];
};

struct Lt {
    void* const at = shim::library("GEMMTUNE_SHIM_CUBLASLT", "libcublasLt.so.13");
    CUDA_FUNCTION(at, int, create, "cublasLtCreate", Handle*);
    CUDA_FUNCTION(at, int, destroy, "cublasLtDestroy", Handle);
    CUDA_FUNCTION(at, size_t, version, "cublasLtGetVersion", void);
    CUDA_FUNCTION(at, int, make_layout, "cublasLtMatrixLayoutCreate", Handle*, int, uint64_t, uint64_t, int64_t);
    CUDA_FUNCTION(at, int, end_layout, "cublasLtMatrixLayoutDestroy", Handle);
    CUDA_FUNCTION(at, int, set_layout, "cublasLtMatrixLayoutSetAttribute", Handle, int, const void*, size_t);
    CUDA_FUNCTION(at, int, make_desc, "cublasLtMatmulDescCreate", Handle*, int, int);
    CUDA_FUNCTION(at, int, end_desc, "cublasLtMatmulDescDestroy", Handle);
    CUDA_FUNCTION(at, int, set_desc, "cublasLtMatmulDescSetAttribute", Handle, int, const void*, size_t);
    CUDA_FUNCTION(at, int, make_preference, "cublasLtMatmulPreferenceCreate", Handle*);
    CUDA_FUNCTION(at, int, end_preference, "cublasLtMatmulPreferenceDestroy", Handle);
    CUDA_FUNCTION(at, int, set_preference, "cublasLtMatmulPreferenceSetAttribute", Handle, int, const void*, size_t);
    CUDA_FUNCTION(at, int, heuristic, "cublasLtMatmulAlgoGetHeuristic", Handle, Handle, Handle, Handle, Handle, Handle, Handle,
                  int, CudaResult*, int*);
    CUDA_FUNCTION(at, int, matmul, "cublasLtMatmul", Handle, Handle, const void*, const void*, Handle, const void*, Handle,
                  const void*, const void*, Handle, void*, Handle, const void*, void*, size_t, Handle);
};
const Lt& lt() {
    static const Lt found;
    return found;
}

enum { kTransA = 3, kTransB = 4, kEpilogue = 7, kBiasPointer = 8, kScaleA = 17, kScaleB = 18, kScaleD = 20, kBiasType = 26 };
enum { kBatch = 5, kStride = 6, kMaxWorkspace = 1 };
constexpr int kAnswers = 32;

// hipblasComputeType_t -> cublasComputeType_t
int compute_type(int hip) {
    switch (hip) {
        case 0: return 64;
        case 6: return 77;
        case 7: return 70;
        case 9: return 72;
        default: return 68;
    }
}

hipblasStatus_t hip(int cublas) {
    switch (cublas) {
        case 0: return kSuccess;
        case 7: return kInvalidValue;
        case 13: return kExecutionFailed;
        case 8: case 15: return kNotSupported;
        default: return kInternalError;
    }
}

// The heuristic's answers for a problem, asked once for its descriptors.
using Problem = std::tuple<Handle, Handle, Handle, Handle, Handle>;
std::map<Problem, std::vector<CudaResult>> known;

const std::vector<CudaResult>& answers(Handle handle, Handle desc, Handle a, Handle b, Handle c, Handle d) {
    const Problem problem{desc, a, b, c, d};
    const auto found = known.find(problem);
    if (found != known.end()) return found->second;
    Handle preference = nullptr;
    const uint64_t limit = 32u << 20;
    lt().make_preference(&preference);
    lt().set_preference(preference, kMaxWorkspace, &limit, sizeof limit);
    std::vector<CudaResult> results(kAnswers);
    int count = 0;
    if (lt().heuristic(handle, desc, a, b, c, d, preference, kAnswers, results.data(), &count)) count = 0;
    lt().end_preference(preference);
    results.resize(static_cast<size_t>(count));
    return known.emplace(problem, std::move(results)).first->second;
}

void forget(Handle gone) {
    for (auto one = known.begin(); one != known.end();) {
        const auto& [desc, a, b, c, d] = one->first;
        one = desc == gone || a == gone || b == gone || c == gone || d == gone ? known.erase(one) : std::next(one);
    }
}

int index_of(const Algo& algo) {
    int index;
    std::memcpy(&index, algo.data, sizeof index);
    return index;
}
Result result_of(int index, size_t workspace) {
    Result made{};
    std::memcpy(made.algo.data, &index, sizeof index);
    made.algo.max_workspace_bytes = made.workspaceSize = workspace;
    return made;
}

}  // namespace

struct hipblasLtMatmulDescOpaque_t {};
struct hipblasLtMatrixLayoutOpaque_t {};

extern "C" {

hipblasStatus_t hipblasLtCreate(Handle* handle) { return hip(lt().create(handle)); }
hipblasStatus_t hipblasLtDestroy(Handle handle) { return hip(lt().destroy(handle)); }
hipblasStatus_t hipblasLtGetVersion(Handle, int* version) {
    *version = static_cast<int>(lt().version());
    return kSuccess;
}
hipblasStatus_t hipblasLtGetGitRevision(Handle, char* revision) {
    std::strcpy(revision, "cublaslt");
    return kSuccess;
}
hipblasStatus_t hipblasLtMatrixLayoutCreate(Handle* layout, int type, uint64_t rows, uint64_t columns, int64_t ld) {
    return hip(lt().make_layout(layout, type, rows, columns, ld));
}
hipblasStatus_t hipblasLtMatrixLayoutDestroy(Handle layout) {
    forget(layout);
    return hip(lt().end_layout(layout));
}
hipblasStatus_t hipblasLtMatrixLayoutSetAttribute(Handle layout, int attribute, const void* value, size_t size) {
    return hip(lt().set_layout(layout, attribute == 0 ? kBatch : kStride, value, size));
}
hipblasStatus_t hipblasLtMatmulDescCreate(Handle* desc, int compute, int scale_type) {
    return hip(lt().make_desc(desc, compute_type(compute), scale_type));
}
hipblasStatus_t hipblasLtMatmulDescDestroy(Handle desc) {
    forget(desc);
    return hip(lt().end_desc(desc));
}
hipblasStatus_t hipblasLtMatmulDescSetAttribute(Handle desc, int attribute, const void* value, size_t size) {
    if (attribute == 0 || attribute == 1) {
        const int operation = *static_cast<const int*>(value) - HIPBLAS_OP_N;
        return hip(lt().set_desc(desc, attribute ? kTransB : kTransA, &operation, sizeof operation));
    }
    const std::map<int, int> names = {{2, kEpilogue}, {3, kBiasPointer}, {4, kBiasType}, {5, kScaleA}, {6, kScaleB}, {8, kScaleD}};
    const auto found = names.find(attribute);
    return found == names.end() ? kNotSupported : hip(lt().set_desc(desc, found->second, value, size));
}
hipblasStatus_t hipblasLtMatmulPreferenceCreate(uint64_t** preference) {
    *preference = new uint64_t(0);
    return kSuccess;
}
hipblasStatus_t hipblasLtMatmulPreferenceDestroy(uint64_t* preference) {
    delete preference;
    return kSuccess;
}
hipblasStatus_t hipblasLtMatmulPreferenceSetAttribute(uint64_t* preference, int attribute, const void* value, size_t size) {
    if (attribute != 1 || size != sizeof *preference) return kInvalidValue;
    std::memcpy(preference, value, size);
    return kSuccess;
}
hipblasStatus_t hipblasLtMatmulAlgoGetHeuristic(Handle handle, Handle desc, Handle a, Handle b, Handle c, Handle d,
                                                uint64_t* limit, int wanted, Result* results, int* count) {
    *count = 0;
    const std::vector<CudaResult>& found = answers(handle, desc, a, b, c, d);
    if (found.empty()) return kNotSupported;
    for (size_t i = 0; i < found.size() && *count < wanted; ++i)
        if (found[i].workspace <= *limit) results[(*count)++] = result_of(static_cast<int>(i) + 1, found[i].workspace);
    return kSuccess;
}
hipblasStatus_t hipblasLtMatmul(Handle handle, Handle desc, const void* alpha, const void* a, Handle la, const void* b, Handle lb,
                                const void* beta, const void* c, Handle lc, void* d, Handle ld, const Algo* algo,
                                void* workspace, size_t workspace_bytes, Handle stream) {
    const std::vector<CudaResult>& found = answers(handle, desc, la, lb, lc, ld);
    const size_t rank = static_cast<size_t>(index_of(*algo)) - 1;
    if (rank >= found.size()) return kInvalidValue;
    return hip(lt().matmul(handle, desc, alpha, a, la, b, lb, beta, c, lc, d, ld, found[rank].algo, workspace, workspace_bytes,
                           stream));
}

}  // extern "C"

namespace hipblaslt_ext {

enum class GemmType { kGemm = 1, kGrouped = 2 };
using Desc = hipblasLtMatmulDescOpaque_t;
using Layout = hipblasLtMatrixLayoutOpaque_t;

hipblasStatus_t getAllAlgos(void*, GemmType, hipblasOperation_t, hipblasOperation_t, hipDataType, hipDataType, hipDataType,
                            hipDataType, hipblasComputeType_t, std::vector<Result>& results) {
    results.clear();
    for (int index = 1; index <= kAnswers; ++index) results.push_back(result_of(index, 0));
    return kSuccess;
}
hipblasStatus_t matmulIsAlgoSupported(void* handle, Desc* desc, const void*, Layout* a, Layout* b, const void*, Layout* c,
                                      Layout* d, Algo& algo, size_t& workspace) {
    const std::vector<CudaResult>& found = answers(handle, desc, a, b, c, d);
    const size_t rank = static_cast<size_t>(index_of(algo)) - 1;
    if (rank >= found.size()) return kInvalidValue;
    workspace = found[rank].workspace;
    return kSuccess;
}
hipblasStatus_t getAlgosFromIndex(void*, std::vector<int>& indices, std::vector<Result>& results) {
    results.clear();
    for (const int index : indices)
        if (index >= 1 && index <= kAnswers) results.push_back(result_of(index, 0));
    return results.empty() ? kInvalidValue : kSuccess;
}
int getIndexFromAlgo(Algo& algo) { return index_of(algo); }
std::string getKernelNameFromAlgo(void*, Algo& algo) { return "cuBLASLt, answer " + std::to_string(index_of(algo)); }
std::string getSolutionNameFromAlgo(void*, Algo& algo) { return getKernelNameFromAlgo(nullptr, algo); }

}  // namespace hipblaslt_ext
