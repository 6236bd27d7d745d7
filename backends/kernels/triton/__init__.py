"""GEMM kernels written in Triton, compiled ahead of time to cubin and launched like any other kernel, without
torch. kernels.py is the source; worker.py alone imports it, in a process of its own."""
