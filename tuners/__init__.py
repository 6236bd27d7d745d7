"""Which candidate is best, and how we know: space, search, measure, verify, decide."""
