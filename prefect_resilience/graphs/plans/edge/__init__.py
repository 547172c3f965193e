"""A plan as a Prefect flow run."""
