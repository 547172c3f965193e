"""Batches: runs that belong together, how they ended, and how to recover them."""
