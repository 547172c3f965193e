"""Events and notes of Prefect runs."""
