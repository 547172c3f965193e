"""Each test has a ledger of its own."""

from __future__ import annotations

import pytest

from prefect_resilience import open_store
from prefect_resilience.stores.base import scan_all


@pytest.fixture(autouse=True)
def store(monkeypatch, tmp_path):
    url = f"sqlite:///{tmp_path}/effects.db"
    monkeypatch.setenv("PREFECT_RESILIENCE_STORE_URL", url)
    return url


@pytest.fixture
def empty(store):
    """Deletes the records of the ledger."""

    def delete_all(prefix: str = "") -> None:
        opened = open_store(store)
        for place, document in list(scan_all(opened, prefix)):
            opened.delete(place, document.version)

    return delete_all
