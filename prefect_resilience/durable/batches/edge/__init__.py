"""Batches as Prefect flow runs, tags and labels."""
