"""These tests run against a real Prefect API."""

from tests.prefect_runs import get, mode, own_store, prefect_api, seen, until_fixture

__all__ = ["get", "mode", "own_store", "prefect_api", "seen", "until_fixture"]
