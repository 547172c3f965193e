"""Guards around plain functions."""
