"""Where the stores of `benchmarks.store_scale` are: in files and servers of its own."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psycopg

from tests.stores_servers import PostgresServer, RedisServer


@contextmanager
def server_of(scheme: str, kept: Path | None) -> Generator[Any]:
    """A server for one store; None for a file. `kept`: a folder in which the data of PostgreSQL stay."""
    if scheme == "sqlite":
        yield None
        return
    server = PostgresServer() if scheme == "postgresql" else RedisServer()
    # The other one of the two has no use for these.
    options = ["-c", "max_wal_size=4GB"] if scheme == "postgresql" else ["--appendonly", "no"]
    try:
        if isinstance(server, PostgresServer) and kept is not None:
            _keep(server, kept.absolute() / "postgresql")
        server.start(*options)
        yield server
    finally:
        server.remove()


def _keep(server: PostgresServer, folder: Path) -> None:
    """Let the server's data be in a folder that stays."""
    data = folder / "data"
    if not data.exists():
        folder.mkdir(parents=True, exist_ok=True)
        if server.rights:
            os.chown(folder, server.rights["user"], server.rights["group"])
        server.fill(data)
    (server.folder / "data").symlink_to(data)


@contextmanager
def place_of_store(scheme: str, server: Any, name: str, kept: Path | None) -> Generator[tuple[str, bool]]:
    """The URL of a store, and whether it was filled before. Redis keeps nothing."""
    if scheme == "redis":
        yield server.url(), False
        server.client().flushall()
    elif kept is None:
        with tempfile.TemporaryDirectory() as folder, _url(scheme, server, name, Path(folder)) as url:
            yield url, False
            if scheme == "postgresql":
                _sql(server, f'DROP SCHEMA "{name}" CASCADE')
    else:
        kept.mkdir(parents=True, exist_ok=True)
        full = kept / f"{scheme}-{name}.filled"
        with _url(scheme, server, name, kept) as url:
            yield url, full.exists()
        full.touch()


@contextmanager
def _url(scheme: str, server: Any, name: str, folder: Path) -> Generator[str]:
    if scheme == "sqlite":
        yield f"sqlite:///{folder.absolute()}/{name}.db"
    else:
        _sql(server, f'CREATE SCHEMA IF NOT EXISTS "{name}"')
        yield f"{server.url()}?options=-csearch_path%3D{name}"


def _sql(server: Any, statement: str) -> None:
    with psycopg.connect(server.url(), autocommit=True) as connection:
        connection.execute(statement.encode())
