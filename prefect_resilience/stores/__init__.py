"""Stores: versioned JSON documents with compare-and-swap, in memory, SQLite, PostgreSQL or Redis."""

from __future__ import annotations

import threading

from prefect_resilience.base.process import per_process
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.stores.base import Document, Store
from prefect_resilience.stores.memory import MemoryStore
from prefect_resilience.stores.urls import StoreUrl, parse_url

__all__ = ["Document", "MemoryStore", "Store", "StoreUrl", "open_store", "parse_url"]

_opened: dict[str, MemoryStore | Store] = {}
_DRIVERS = {"postgresql": ("psycopg 3", "postgres"), "redis": ("redis-py", "redis")}
"""The library that a kind of store needs, and the extra that installs it."""


class _Opening:
    def __init__(self) -> None:
        self.lock = threading.Lock()


_opening = per_process(_Opening)


def open_store(url: str) -> Store:
    """The store at `url`, one object per URL in this process: "sqlite:///path/to/file.db", "memory://",
    "postgresql://user:password@host/database", "redis://host:6379/0".

    Does not connect yet: if the database is unavailable, the first operation fails. Raises
    ConfigurationError for an invalid URL, and if the database's driver is not installed.

    Example:
        >>> store = open_store("memory://greetings")
        >>> version = store.swap("greeting", 0, {"text": "hello"})  # 0: must not exist
        >>> store.load("greeting").value
        {'text': 'hello'}
    """
    store = _opened.get(url) if isinstance(url, str) else None  # pyright: ignore[reportUnnecessaryIsInstance]
    if store is not None and not getattr(store, "closed", False):
        return store
    parsed = parse_url(url)
    with _opening.lock:
        store = _opened.get(parsed.canonical)
        if store is None or getattr(store, "closed", False):
            store = _opened[parsed.canonical] = _open(parsed)
        return store


def _open(parsed: StoreUrl) -> Store:
    try:
        if parsed.kind == "postgresql":
            from prefect_resilience.stores.postgres import PostgresStore

            return PostgresStore(parsed)
        if parsed.kind == "redis":
            from prefect_resilience.stores.redis import RedisStore

            return RedisStore(parsed)
    except ImportError as error:
        name, extra = _DRIVERS[parsed.kind]
        raise ConfigurationError(
            f"this store needs {name}, which cannot be imported here ({error}): "
            f"pip install 'prefect-resilience[{extra}]'"
        ) from error
    if parsed.kind == "memory":
        return MemoryStore(parsed.canonical)
    from prefect_resilience.stores.sqlite import SqliteStore

    return SqliteStore(parsed)
