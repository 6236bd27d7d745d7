"""Portfolios: for each architecture and types, a small set of solutions that serves many problems."""
