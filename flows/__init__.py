"""Runnable examples. They use the public API alone."""
