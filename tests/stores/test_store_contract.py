"""Every store of ours keeps the contract, and so does one that a user wrote against 0.2."""

import itertools
from pathlib import Path
from typing import Any

import pytest

from prefect_resilience.stores import MemoryStore, Store, open_store
from prefect_resilience.stores.base import WatchedStore, change, scan_all, write
from prefect_resilience.testing.stores import MakeStore, StoreContract
from prefect_resilience.testing.watched_stores import WatchedStoreContract

numbers = itertools.count()


class TestMemory(StoreContract):
    @pytest.fixture
    def make_store(self) -> MakeStore:
        return MemoryStore


class TestSqlite(StoreContract, WatchedStoreContract):
    @pytest.fixture
    def make_store(self, tmp_path: Path) -> MakeStore:
        return lambda: open_store(f"sqlite:///{tmp_path}/new folder/{next(numbers)}.db")


class TestPostgres(StoreContract, WatchedStoreContract):
    @pytest.fixture
    def make_store(self, postgres_url: str) -> MakeStore:
        return lambda: open_store(postgres_url)


class TestRedis(StoreContract, WatchedStoreContract):
    @pytest.fixture
    def make_store(self, redis_url: str) -> MakeStore:
        return lambda: open_store(redis_url)


class StoreOf02:
    """A store that a user wrote against 0.2: it knows of no open documents, and publishes nothing."""

    def __init__(self) -> None:
        self._store = MemoryStore()
        self.url = "user://x"
        for name in ("load", "delete", "scan", "now", "close"):
            setattr(self, name, getattr(self._store, name))

    def swap(self, key: str, expected_version: int, value: Any, expires_at: float | None = None) -> int:
        return self._store.swap(key, expected_version, value, expires_at)


class StoreDerivedIn02(MemoryStore):
    """A store of ours in which a user overrode `swap` as it was in 0.2."""

    def swap(  # type: ignore[override]
        self, key: str, expected_version: int, value: Any, expires_at: float | None = None
    ) -> int:
        return super().swap(key, expected_version, value, expires_at)


class TestStoreOf02(StoreContract):
    @pytest.fixture(params=[StoreOf02, StoreDerivedIn02])
    def make_store(self, request: pytest.FixtureRequest) -> MakeStore:
        return request.param

    def test_it_is_scanned_for_what_is_open_and_polled_for_news(self, store: Store) -> None:
        assert not isinstance(store, WatchedStore)
        assert write(store, "letter/1", 0, {}, True)
        change(store, "letter/2", lambda _: {"status": "settled"}, is_open=lambda _: True)
        found = [key for key, _ in scan_all(store, "letter/", only_open=True)]
        assert found == ["letter/1", "letter/2"]
