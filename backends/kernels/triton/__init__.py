"""GEMM kernels written in Triton, compiled ahead of time and launched like any other kernel, without torch.
kernels.py, framework_kernels.py and weight_kernels.py are the sources; only toolchains/triton_worker.py
imports them, in a separate process."""
