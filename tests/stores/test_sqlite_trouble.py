"""A SQLite file that is deleted, damaged, or cannot be written: unavailable, and back when it is back."""

import os
import shutil
import sqlite3
from pathlib import Path

import pytest

from prefect_resilience.errors.exceptions import StoreUnavailable
from prefect_resilience.stores import MemoryStore, Store, open_store


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "folder" / "store.db"


@pytest.fixture
def store(path: Path) -> Store:
    return open_store(f"sqlite:///{path}")


def test_it_waits_for_the_disk_and_keeps_a_write_ahead_log(store: Store, path: Path) -> None:
    store.swap("key", 0, 1)
    with sqlite3.connect(path) as connection:
        assert connection.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    with store._connect().connection() as ours:  # type: ignore[attr-defined]
        assert ours.execute("PRAGMA synchronous").fetchone() == (2,)


def test_a_deleted_file_is_made_anew(store: Store, path: Path) -> None:
    version = store.swap("key", 0, "old")
    shutil.rmtree(path.parent)
    assert store.load("key") is None
    assert store.swap("key", 0, "new") > version
    assert path.exists()
    # Another connection sees it: it was not written into the deleted file.
    with sqlite3.connect(path) as connection:
        assert connection.execute("SELECT count(*) FROM prefect_resilience_documents").fetchone() == (1,)


def test_a_file_that_was_replaced_is_the_one_that_counts(store: Store, path: Path, tmp_path: Path) -> None:
    other = open_store(f"sqlite:///{tmp_path}/other.db")
    other.swap("key", 0, "other")
    other.close()
    store.swap("key", 0, "old")
    for file in path.parent.iterdir():
        file.unlink()
    os.replace(tmp_path / "other.db", path)
    found = store.load("key")
    assert found is not None
    assert found.value == "other"


def test_what_is_no_database_is_unavailable_until_it_is_gone(store: Store, path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"this is no database" * 1000)
    for operation in (lambda: store.load("key"), lambda: store.swap("key", 0, 1), lambda: store.scan("k")):
        with pytest.raises(StoreUnavailable, match="not a database"):
            operation()
    path.unlink()
    assert store.swap("key", 0, 1)


def test_a_damaged_document_is_unavailable_and_the_others_are_not(store: Store, path: Path) -> None:
    store.swap("good", 0, 1)
    store.swap("bad", 0, 1)
    with sqlite3.connect(path) as connection:
        connection.execute("UPDATE prefect_resilience_documents SET value = '{' WHERE key = 'bad'")
    assert store.load("good") is not None
    with pytest.raises(StoreUnavailable, match="bad"):
        store.load("bad")


@pytest.mark.parametrize("kind", ["memory", "sqlite"])
def test_versions_grow_though_the_clock_is_set_back(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [2_000_000_000.0]
    monkeypatch.setattr(f"prefect_resilience.stores.{kind}.time.time", lambda: clock[0])
    monkeypatch.setattr("prefect_resilience.stores.sql.PURGE_PAUSE", 0.0)
    store = MemoryStore() if kind == "memory" else open_store(f"sqlite:///{tmp_path}/clock.db")
    last = store.swap("key", 0, 1)
    for _ in range(5):
        assert store.delete("key", last)
        clock[0] -= 1000
        version = store.swap("key", 0, 1, expires_at=clock[0] - 1)
        assert version > last
        # Expired, and purged in passing by another write.
        assert store.swap(f"other/{clock[0]}", 0, 1)
        last, before = store.swap("key", 0, 2), version
        assert last > before
