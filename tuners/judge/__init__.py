"""Judges a user's kernel: the existing session, with checks of its own for kernels that cheat."""
