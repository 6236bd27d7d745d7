"""Suites of the Triton families."""
