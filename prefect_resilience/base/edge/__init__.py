"""The settings, which depend on Prefect's own settings."""
