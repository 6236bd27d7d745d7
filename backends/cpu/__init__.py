"""The CPU as a GEMM device: available on every machine, and tuned like any other device."""
