"""The benchmark measures what it says: in small, and whatever the clock of the machine says."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from benchmarks import effects as benchmark
from benchmarks.effects import Store, measure
from prefect_resilience.durable.effects.ledger import open_ledger
from prefect_resilience.stores import open_store

pytestmark = pytest.mark.api

CALLS, RUNS = 3, 2


@pytest.fixture(params=["SQLite", "PostgreSQL"])
def store(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Store]:
    if request.param == "SQLite":
        made = Store("SQLite", f"sqlite:///{tmp_path}/effects.db", f"sqlite:///{tmp_path}/dbos.db")
        yield made
    else:
        # DBOS has a schema of its own in the database.
        server: str = request.getfixturevalue("postgres_server_url")
        name = f"benchmark_{os.getpid()}"
        with psycopg.connect(server, autocommit=True) as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
            url = urlsplit(server)._replace(path=f"/{name}").geturl()
            yield (made := Store("PostgreSQL", url, url))
            open_store(made.url).close()
            connection.execute(f"DROP DATABASE {name} WITH (FORCE)".encode())
    open_store(made.url).close()


def test_every_call_is_recorded_by_both(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "WARM_UP_EFFECTS", 1)
    monkeypatch.setattr(benchmark, "WARM_UP_RUNS", 1)
    configured = os.environ["PREFECT_RESILIENCE_STORE_URL"]
    alone, in_runs = measure([store], 2, CALLS, RUNS)
    assert [(cost.store, cost.where, cost.rounds) for cost in (alone, in_runs)] == [
        (store.name, "alone", 2),
        (store.name, "in a task run", RUNS),
    ]
    # It commits, twice; DBOS asks and commits.
    assert min(alone.ours, alone.dbos, in_runs.ours, in_runs.dbos) > 0
    assert os.environ["PREFECT_RESILIENCE_STORE_URL"] == configured
    done = [
        document.value["state"] for _, document in open_ledger(store.url).store.scan("effects/", limit=99)
    ]
    assert done == ["done"] * ((2 + 1) * CALLS + RUNS + 1)
    assert steps_in(store) == (2 + 1) * CALLS + RUNS + 1


def steps_in(store: Store) -> int:
    """How many steps DBOS has recorded."""
    if store.name == "PostgreSQL":
        with psycopg.connect(store.dbos_url) as connection:
            found: Any = connection.execute("SELECT count(*) FROM dbos.operation_outputs").fetchone()
    else:
        with sqlite3.connect(store.dbos_url.removeprefix("sqlite:///")) as connection:
            found = connection.execute("SELECT count(*) FROM operation_outputs").fetchone()
    return found[0]
