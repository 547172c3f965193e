"""What is read from Prefect's settings."""
