"""A scan that goes on begins where the last page ended: all pages of a store cost the same."""

import sqlite3
from pathlib import Path
from typing import Any

import pytest

from prefect_resilience import open_store
from prefect_resilience.stores.sql import SqlStore

KEYS = 3_000
PAGE = 100


@pytest.mark.slow
def test_the_last_page_of_sqlite_costs_what_the_first_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(f"sqlite:///{tmp_path / 'many.db'}")
    assert isinstance(store, SqlStore)
    for number in range(KEYS):
        assert store.swap(f"item/{number:06}", 0, {})
    steps = 0

    def step() -> int:
        nonlocal steps
        steps += 1
        return 0

    def counted(connection: sqlite3.Connection, _: Any = None) -> list[tuple[int]]:
        connection.set_progress_handler(step, 10)
        return [(0,)]

    store.using(counted)
    costs: list[int] = []
    after = None
    while page := store.scan("item/", after, PAGE):
        costs.append(steps)
        steps, after = 0, page[-1][0]
    assert len(costs) == KEYS // PAGE
    assert costs[0] > 0
    assert max(costs) <= 2 * costs[0]
