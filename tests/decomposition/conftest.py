"""These tests run against a real Prefect API."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def in_prefect(prefect_api: None, own_store: None) -> None:
    """A server that is there, and circuits that know nothing of another test's."""
