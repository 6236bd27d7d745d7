// Reads a TunableOp results file as PyTorch does from 2.14 on, and rebuilds every cuBLASLt row with
// AlgoInit and SetAttribute; each must pass AlgoCheck, and run. Knows nothing of gemmtune.
//
//   nvcc -std=c++17 -o tunableop_check tunableop_check.cpp -lcublasLt && ./tunableop_check results.csv

#include <cublasLt.h>
#include <cuda_runtime.h>

#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>
#include <string>

struct Type {
    cudaDataType_t data;
    cublasComputeType_t compute;
    cudaDataType_t scale;
    size_t bytes;
};

static const std::map<std::string, Type> TYPES = {
    {"float", {CUDA_R_32F, CUBLAS_COMPUTE_32F, CUDA_R_32F, 4}},
    {"double", {CUDA_R_64F, CUBLAS_COMPUTE_64F, CUDA_R_64F, 8}},
    {"Half", {CUDA_R_16F, CUBLAS_COMPUTE_32F, CUDA_R_32F, 2}},
    {"BFloat16", {CUDA_R_16BF, CUBLAS_COMPUTE_32F, CUDA_R_32F, 2}},
};

template <class T>
static cublasStatus_t set(cublasLtMatmulAlgo_t* algo, cublasLtMatmulAlgoConfigAttributes_t name, T value) {
    return cublasLtMatmulAlgoConfigSetAttribute(algo, name, &value, sizeof(value));
}

// "" or what went wrong.
static std::string rebuild(cublasLtHandle_t handle, const std::string& op, const std::string& key,
                           const std::string& solution, void* memory, size_t room) {
    char type_name[32], transposes[3];
    // GemmTunableOp_<type>_<layout>; float rows that allow TF32 are named alike, and tried as plain fp32.
    if (sscanf(op.c_str(), "GemmTunableOp_%31[A-Za-z0-9]_%2[NTC]", type_name, transposes) != 2)
        return "not a plain GEMM";
    auto found = TYPES.find(type_name);
    if (found == TYPES.end()) return "unknown type";
    const Type type = found->second;
    char ta, tb;
    long long m, n, k, lda, ldb, ldc;
    if (sscanf(key.c_str(), "%c%c_%lld_%lld_%lld_ld_%lld_%lld_%lld", &ta, &tb, &m, &n, &k, &lda, &ldb, &ldc) != 8)
        return "unreadable key";
    // As PyTorch does before it asks cuBLAS: the leading dimension of a single column is of no use.
    if (n <= 1 && ldc < m) ldc = m;
    if (ta == 't' ? m <= 1 && lda < k : k <= 1 && lda < m) lda = ta == 't' ? k : m;
    if (tb == 't' ? k <= 1 && ldb < n : n <= 1 && ldb < k) ldb = tb == 't' ? n : k;
    int id, splitk;
    unsigned tile, stages, reduction, swizzle, custom;
    unsigned short inner, cluster;
    if (sscanf(solution.c_str(),
               "Gemm_Cublaslt_id_%d_tile_%u_stages_%u_splitk_%d_red_%u_swizzle_%u_custom_%u_inner_%hu_cluster_%hu",
               &id, &tile, &stages, &splitk, &reduction, &swizzle, &custom, &inner, &cluster) != 9)
        return "unreadable solution";

    cublasLtMatmulDesc_t desc;
    cublasLtMatrixLayout_t a, b, c;
    cublasLtMatmulDescCreate(&desc, type.compute, type.scale);
    cublasOperation_t opa = ta == 't' ? CUBLAS_OP_T : CUBLAS_OP_N, opb = tb == 't' ? CUBLAS_OP_T : CUBLAS_OP_N;
    cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_TRANSA, &opa, sizeof(opa));
    cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_TRANSB, &opb, sizeof(opb));
    cublasLtMatrixLayoutCreate(&a, type.data, ta == 't' ? k : m, ta == 't' ? m : k, lda);
    cublasLtMatrixLayoutCreate(&b, type.data, tb == 't' ? n : k, tb == 't' ? k : n, ldb);
    cublasLtMatrixLayoutCreate(&c, type.data, m, n, ldc);

    cublasLtMatmulAlgo_t algo;
    std::string wrong;
    if (cublasLtMatmulAlgoInit(handle, type.compute, type.scale, type.data, type.data, type.data, type.data, id, &algo))
        wrong = "AlgoInit";
    else if (set(&algo, CUBLASLT_ALGO_CONFIG_TILE_ID, tile) || set(&algo, CUBLASLT_ALGO_CONFIG_STAGES_ID, stages) ||
             set(&algo, CUBLASLT_ALGO_CONFIG_SPLITK_NUM, splitk) ||
             set(&algo, CUBLASLT_ALGO_CONFIG_REDUCTION_SCHEME, reduction) ||
             set(&algo, CUBLASLT_ALGO_CONFIG_CTA_SWIZZLING, swizzle) ||
             set(&algo, CUBLASLT_ALGO_CONFIG_CUSTOM_OPTION, custom) ||
             set(&algo, CUBLASLT_ALGO_CONFIG_INNER_SHAPE_ID, inner) ||
             set(&algo, CUBLASLT_ALGO_CONFIG_CLUSTER_SHAPE_ID, cluster))
        wrong = "SetAttribute";
    cublasLtMatmulHeuristicResult_t result{};
    if (wrong.empty() && cublasLtMatmulAlgoCheck(handle, desc, a, b, c, c, &algo, &result)) wrong = "AlgoCheck";
    if (wrong.empty()) {
        const size_t sizes[3] = {size_t(lda) * (ta == 't' ? m : k), size_t(ldb) * (tb == 't' ? k : n), size_t(ldc) * n};
        char* at = static_cast<char*>(memory);
        char* place[3];
        for (int i = 0; i < 3; i++) place[i] = at, at += (sizes[i] * type.bytes + 255) / 256 * 256;
        if (size_t(at - static_cast<char*>(memory)) + result.workspaceSize > room) {
            wrong = "too large for this program";
        } else {
            const double one = 1, zero = 0;
            const float onef = 1, zerof = 0;
            const void* alpha = type.scale == CUDA_R_64F ? static_cast<const void*>(&one) : &onef;
            const void* beta = type.scale == CUDA_R_64F ? static_cast<const void*>(&zero) : &zerof;
            if (cublasLtMatmul(handle, desc, alpha, place[0], a, place[1], b, beta, place[2], c, place[2], c, &algo, at,
                               result.workspaceSize, nullptr) || cudaDeviceSynchronize())
                wrong = "Matmul";
        }
    }
    cublasLtMatrixLayoutDestroy(a), cublasLtMatrixLayoutDestroy(b), cublasLtMatrixLayoutDestroy(c);
    cublasLtMatmulDescDestroy(desc);
    return wrong;
}

int main(int argc, char** argv) {
    if (argc != 2) return fprintf(stderr, "usage: %s results.csv\n", argv[0]), 2;
    std::ifstream file(argv[1]);
    if (!file) return fprintf(stderr, "cannot read %s\n", argv[1]), 2;
    cublasLtHandle_t handle;
    const size_t room = size_t(4) << 30;
    void* memory = nullptr;
    if (cublasLtCreate(&handle) || cudaMalloc(&memory, room) || cudaMemset(memory, 0, room)) return 2;
    int passed = 0, failed = 0;
    std::string line;
    while (std::getline(file, line)) {
        const size_t first = line.find(','), second = line.find(',', first + 1);
        if (first == std::string::npos || second == std::string::npos) continue;
        const std::string op = line.substr(0, first), key = line.substr(first + 1, second - first - 1);
        const std::string solution = line.substr(second + 1, line.find(',', second + 1) - second - 1);
        if (op == "Validator") {
            printf("%s %s\n", key.c_str(), solution.c_str());
            const bool version = key == "CUBLASLT_VERSION";
            if (version && std::stoul(solution) != cublasLtGetVersion()) failed++, printf("another version is loaded\n");
            continue;
        }
        if (solution.rfind("Gemm_Cublaslt_", 0) != 0) continue;
        const std::string wrong = rebuild(handle, op, key, solution, memory, room);
        wrong.empty() ? passed++ : failed++;
        if (!wrong.empty()) printf("%s,%s,%s: %s\n", op.c_str(), key.c_str(), solution.c_str(), wrong.c_str());
    }
    printf("%d rows rebuilt and run, %d failed\n", passed, failed);
    return failed || !passed;
}
