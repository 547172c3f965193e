"""A run of Prefect's, from its engine to `attempt.py` and back: task runs, streams, flow runs."""
