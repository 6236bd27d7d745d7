"""Kernels that users wrote, as families: what a source file states of itself, and how it is called."""
