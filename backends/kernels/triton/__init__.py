"""GEMM kernels written in Triton, compiled ahead of time and launched like any other kernel, without torch.
kernels.py is the source; only toolchains/triton_worker.py imports it, in a separate process."""
