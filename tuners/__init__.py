"""Finds the fastest correct candidate for a problem: space, search, measure, verify, decide."""
