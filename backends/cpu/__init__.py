"""The CPU as a GEMM device: the default everywhere, tuned for real."""
