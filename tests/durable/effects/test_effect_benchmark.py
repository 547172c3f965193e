"""The benchmark measures what it says: in small, and whatever the clock of the machine says."""

from __future__ import annotations

import json
import os
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import psycopg
import pytest

from benchmarks import effects as benchmark
from benchmarks.effects import Cost, Round, Store, cost_of, measure
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


def test_medians_count() -> None:
    rounds: list[Round] = [(2.0, 0.5), (2.0, 0.5), (2.0, 0.5), (90.0, 0.1), (1.0, 70.0)]
    cost = cost_of("SQLite", "alone", rounds)
    assert (cost.dbos, cost.ours, cost.ratio, cost.rounds) == (2.0, 0.5, 0.25, 5)
    assert cost.ratio_low <= 0.25 <= cost.ratio_high


@pytest.mark.parametrize(("ratio", "code"), [(0.5, 0), (0.51, 1)])
def test_the_exit_code_says_whether_the_target_is_met(
    ratio: float, code: int, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def measured(*_: object) -> list[Cost]:
        return [Cost("SQLite", "alone", 2, 1.0, 0.1, 0.1, 0.1, 0.1), Cost("x", "y", 2, 1, ratio, ratio, 0, 1)]

    class NoServer:
        def start(self) -> None:
            return

        remove = start

        def url(self) -> str:
            return "postgresql://nowhere"

    monkeypatch.setattr(benchmark, "measure", measured)
    monkeypatch.setattr(benchmark, "DurableServer", NoServer)
    assert benchmark.main(["--json"]) == code
    assert json.loads(capsys.readouterr().out)["worst"] == ratio
    assert benchmark.main([]) == code
    assert f"{ratio:.2f} of a DBOS step" in capsys.readouterr().out
