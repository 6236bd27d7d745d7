// Host time of cublasLtMatmul itself: what any language pays for one launch outside graphs.
//   launch m n k [burst]   bf16, the weight transposed, the heuristic's first algorithm; prints microseconds.
#include <cublasLt.h>
#include <cuda_runtime.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <vector>

#define CHECK(call) do { if (auto status = (call)) { fprintf(stderr, "%s: %d\n", #call, int(status)); return 1; } } while (0)

int main(int argc, char** argv) {
    if (argc < 4) return fprintf(stderr, "usage: launch m n k [burst]\n"), 2;
    // Column-major: D[n, m] = W^T x.
    const long long rows = atoll(argv[2]), columns = atoll(argv[1]), k = atoll(argv[3]);
    const int burst = argc > 4 ? atoi(argv[4]) : 64;
    cublasLtHandle_t handle;
    CHECK(cublasLtCreate(&handle));
    cudaStream_t stream;
    CHECK(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    cublasLtMatmulDesc_t desc;
    CHECK(cublasLtMatmulDescCreate(&desc, CUBLAS_COMPUTE_32F, CUDA_R_32F));
    const cublasOperation_t transposed = CUBLAS_OP_T;
    CHECK(cublasLtMatmulDescSetAttribute(desc, CUBLASLT_MATMUL_DESC_TRANSA, &transposed, sizeof(transposed)));
    cublasLtMatrixLayout_t a, b, d;
    CHECK(cublasLtMatrixLayoutCreate(&a, CUDA_R_16BF, k, rows, k));
    CHECK(cublasLtMatrixLayoutCreate(&b, CUDA_R_16BF, k, columns, k));
    CHECK(cublasLtMatrixLayoutCreate(&d, CUDA_R_16BF, rows, columns, rows));
    cublasLtMatmulPreference_t preference;
    CHECK(cublasLtMatmulPreferenceCreate(&preference));
    const size_t workspace_size = 32 << 20;
    CHECK(cublasLtMatmulPreferenceSetAttribute(preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace_size,
                                               sizeof(workspace_size)));
    cublasLtMatmulHeuristicResult_t found;
    int count = 0;
    CHECK(cublasLtMatmulAlgoGetHeuristic(handle, desc, a, b, d, d, preference, 1, &found, &count));
    void *A, *B, *D, *workspace;
    CHECK(cudaMalloc(&A, rows * k * 2));
    CHECK(cudaMalloc(&B, columns * k * 2));
    CHECK(cudaMalloc(&D, rows * columns * 2));
    CHECK(cudaMalloc(&workspace, workspace_size));
    const float alpha = 1, beta = 0;
    std::vector<double> microseconds;
    for (int repetition = 0; repetition < 60; repetition++) {
        CHECK(cudaStreamSynchronize(stream));
        const auto begin = std::chrono::steady_clock::now();
        for (int i = 0; i < burst; i++)
            CHECK(cublasLtMatmul(handle, desc, &alpha, A, a, B, b, &beta, D, d, D, d, &found.algo, workspace,
                                 found.workspaceSize, stream));
        const std::chrono::duration<double, std::micro> taken = std::chrono::steady_clock::now() - begin;
        if (repetition >= 10) microseconds.push_back(taken.count() / burst);
    }
    std::sort(microseconds.begin(), microseconds.end());
    printf("%.3f\n", microseconds[microseconds.size() / 2]);
}
