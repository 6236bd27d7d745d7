"""What a GEMM is, and how each vendor runs one: values, protocols and one package a vendor."""
