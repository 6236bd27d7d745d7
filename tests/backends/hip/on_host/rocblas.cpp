// rocBLAS on the host: numbered solutions of one reference product. Solutions of Tensile have indices below -10, as
// rocBLAS has them from ROCm 7 on; 0 is the default's own choice.
#include <string>

#include "gemm.h"
#include "shim.h"

namespace {

enum { kSuccess = 0, kInvalidHandle = 1, kNotImplemented = 2, kInternalError = 6, kSizeUnchanged = 10, kInvalidValue = 11 };
constexpr unsigned kCheckIndex = 8;  // rocblas_gemm_flags_check_solution_index

struct Handle {
    void* stream = nullptr;
    bool asking = false;  // between start and stop of a query of the workspace's size
    size_t asked = 0, workspace_bytes = 0;
    void* workspace = nullptr;
};
struct Numbered {
    int index;
    gemm::Way way;
    size_t workspace;
    bool of_problem;  // listed for the problem, and not only by type
};
constexpr Numbered kSolutions[] = {
    {0, gemm::kTwice, 0, false},     {-621, gemm::kOnce, 0, true}, {-622, gemm::kThrice, 0, true},
    {-623, gemm::kDropsLastK, 0, true}, {-624, gemm::kFails, 0, true}, {-625, gemm::kOnce, 2u << 20, true},
    {-626, gemm::kOnce, 0, false},
};

int type_of(int rocblas_type) {
    switch (rocblas_type) {
        case 150: return gemm::kFp16;
        case 151: return gemm::kFp32;
        case 152: return gemm::kFp64;
        case 160: return gemm::kInt8;
        case 162: return gemm::kInt32;
        case 168: return gemm::kBf16;
        default: return -1;
    }
}

int list(bool by_problem, int input, int* indices, int* size) {
    if (type_of(input) < 0) return kNotImplemented;
    int count = 0;
    for (const Numbered& one : kSolutions)
        if (one.index && (one.of_problem || !by_problem) && (gemm::sound(one.way) || shim::number("GEMMTUNE_SHIM_BAD", 1))) {
            if (indices && count < *size) indices[count] = one.index;
            ++count;
        }
    if (!indices) *size = count;
    return kSuccess;
}

struct Operand {
    int type, ld;
    long long stride;
};

gemm::Matrix matrix(const void* data, Operand of, int64_t rows, int64_t columns) {
    return {type_of(of.type), rows, columns, of.ld, of.stride, data};
}

double scalar(int compute, const void* at) {
    const int type = type_of(compute);
    return type == gemm::kFp16 ? gemm::load(gemm::kFp16, at, 0) : gemm::load(type, at, 0);
}

int multiply(Handle* handle, int trans_a, int trans_b, int m, int n, int k, const void* alpha, const void* a, Operand of_a,
             const void* b, Operand of_b, const void* beta, const void* c, Operand of_c, void* d, Operand of_d, int batch,
             int compute, int index, unsigned flags) {
    if (!handle) return kInvalidHandle;
    if (const int wrong = shim::fault("rocblas_gemm_ex")) return wrong;
    const Numbered* chosen = nullptr;
    for (const Numbered& one : kSolutions)
        if (one.index == index) chosen = &one;
    for (const int type : {of_a.type, of_b.type, of_c.type, of_d.type, compute})
        if (type_of(type) < 0) return kNotImplemented;
    if (!chosen) return kInvalidValue;
    if (flags & kCheckIndex) return kSuccess;
    if (handle->asking) {
        handle->asked = std::max(handle->asked, chosen->workspace);
        return kSizeUnchanged;
    }
    if (chosen->workspace > handle->workspace_bytes) return 5;  // memory_error
    gemm::Problem p;
    const bool ta = trans_a != 111, tb = trans_b != 111;
    p.a = matrix(a, of_a, ta ? k : m, ta ? m : k), p.b = matrix(b, of_b, tb ? n : k, tb ? k : n);
    p.c = matrix(c, of_c, m, n), p.d = matrix(d, of_d, m, n);
    p.transposed_a = ta, p.transposed_b = tb, p.batch = batch;
    p.alpha = scalar(compute, alpha), p.beta = scalar(compute, beta);
    // hipBLASLt is the faster one in 16 bits, and the slower one in fp32.
    const bool slow = gemm::bytes(p.a.type) == 2 && chosen->way == gemm::kOnce;
    std::function<const char*()> work = [p, way = slow ? gemm::kTwice : chosen->way] { return gemm::run(p, way); };
    return gemmtune_shim_queue(handle->stream, &work) ? kInternalError : kSuccess;
}

}  // namespace

extern "C" {

int rocblas_create_handle(void** handle) {
    *handle = new Handle;
    return shim::fault("rocblas_create_handle");
}
int rocblas_destroy_handle(void* handle) {
    delete static_cast<Handle*>(handle);
    return kSuccess;
}
int rocblas_set_stream(void* handle, void* stream) {
    static_cast<Handle*>(handle)->stream = stream;
    return kSuccess;
}
int rocblas_set_workspace(void* handle, void* address, size_t size) {
    Handle& of = *static_cast<Handle*>(handle);
    of.workspace = address, of.workspace_bytes = size;
    return shim::fault("rocblas_set_workspace");
}
int rocblas_get_version_string_size(size_t* size) {
    *size = shim::setting("GEMMTUNE_SHIM_ROCBLAS", "5.2.0.dabb6df2b9").size() + 1;
    return kSuccess;
}
int rocblas_get_version_string(char* text, size_t size) {
    const std::string version = shim::setting("GEMMTUNE_SHIM_ROCBLAS", "5.2.0.dabb6df2b9");
    if (size < version.size() + 1) return kInvalidValue;
    std::memcpy(text, version.c_str(), version.size() + 1);
    return shim::fault("rocblas_get_version_string");
}
int rocblas_start_device_memory_size_query(void* handle) {
    static_cast<Handle*>(handle)->asking = true, static_cast<Handle*>(handle)->asked = 0;
    return kSuccess;
}
int rocblas_stop_device_memory_size_query(void* handle, size_t* size) {
    Handle& of = *static_cast<Handle*>(handle);
    *size = of.asked, of.asking = false;
    return kSuccess;
}

int rocblas_gemm_ex(void* handle, int ta, int tb, int m, int n, int k, const void* alpha, const void* a, int a_type, int lda,
                    const void* b, int b_type, int ldb, const void* beta, const void* c, int c_type, int ldc, void* d,
                    int d_type, int ldd, int compute, int, int index, unsigned flags) {
    return multiply(static_cast<Handle*>(handle), ta, tb, m, n, k, alpha, a, {a_type, lda, 0}, b, {b_type, ldb, 0}, beta, c,
                    {c_type, ldc, 0}, d, {d_type, ldd, 0}, 1, compute, index, flags);
}
int rocblas_gemm_strided_batched_ex(void* handle, int ta, int tb, int m, int n, int k, const void* alpha, const void* a,
                                    int a_type, int lda, long long stride_a, const void* b, int b_type, int ldb,
                                    long long stride_b, const void* beta, const void* c, int c_type, int ldc,
                                    long long stride_c, void* d, int d_type, int ldd, long long stride_d, int batch,
                                    int compute, int, int index, unsigned flags) {
    return multiply(static_cast<Handle*>(handle), ta, tb, m, n, k, alpha, a, {a_type, lda, stride_a}, b, {b_type, ldb, stride_b},
                    beta, c, {c_type, ldc, stride_c}, d, {d_type, ldd, stride_d}, batch, compute, index, flags);
}
int rocblas_gemm_ex_get_solutions(void*, int, int, int, int, int, const void*, const void*, int a_type, int, const void*, int,
                                  int, const void*, const void*, int, int, void*, int, int, int, int, unsigned, int* indices,
                                  int* size) {
    if (const int wrong = shim::fault("rocblas_gemm_ex_get_solutions")) return wrong;
    return list(true, a_type, indices, size);
}
int rocblas_gemm_strided_batched_ex_get_solutions(void*, int, int, int, int, int, const void*, const void*, int a_type, int,
                                                  long long, const void*, int, int, long long, const void*, const void*,
                                                  int, int, long long, void*, int, int, long long, int, int, int, unsigned,
                                                  int* indices, int* size) {
    return list(true, a_type, indices, size);
}
int rocblas_gemm_ex_get_solutions_by_type(void*, int input, int, int, unsigned, int* indices, int* size) {
    return list(false, input, indices, size);
}

}  // extern "C"
