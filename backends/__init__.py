"""GEMM problems and how each vendor runs them: value types, protocols and one package per vendor."""
