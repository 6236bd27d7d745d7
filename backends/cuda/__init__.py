"""NVIDIA GPUs through the CUDA driver, with cuBLAS, cuBLASLt and torch's own call as families."""
