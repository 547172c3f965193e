"""What meets stores, the Prefect API and browsers."""
