"""Decomposition of work that is too big for one call: split it, run the parts, merge the results."""
