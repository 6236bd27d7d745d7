"""Measurements behind every published figure; each writes JSON into benchmarks/results."""
