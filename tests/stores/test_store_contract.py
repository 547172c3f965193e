"""Every store of ours keeps the contract."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from prefect_resilience.stores import MemoryStore, open_store
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
