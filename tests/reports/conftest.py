"""A real Prefect API of the reports' own: it sees the runs of these tests alone."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def in_prefect(prefect_api: None, own_store: None) -> None:
    """A server that is there, and a store that knows nothing of another test's."""
