"""Example: a nightly operation that recovers crashed runs, replays dead letters and reports."""
