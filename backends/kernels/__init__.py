"""Our own GPU kernels: one source for CUDA, HIP and the host; kernel families and legality rules in
Python."""
