"""AMD GPUs through the HIP runtime, with hipBLASLt, rocBLAS and torch's own call as families."""
