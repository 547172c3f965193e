"""The short form runs against the session's Prefect API, with a store of its own."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def in_prefect(prefect_api: None, own_store: None) -> None:
    """A server that is there, and a store that knows nothing of another test's."""
