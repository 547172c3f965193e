"""The access of limits to Prefect's API."""
