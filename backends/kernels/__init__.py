"""Our own GPU kernels: one source for CUDA, HIP and the host; families, launches and legality in Python."""
