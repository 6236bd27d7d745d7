"""Grouped products: rows sorted by group, each group by weights of its own, as in a mixture of experts."""
