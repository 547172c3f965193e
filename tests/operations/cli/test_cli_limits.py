"""`limits list` on a store that processes have filled."""

from __future__ import annotations

from typing import Any

from prefect_resilience.guards.limits.sharing import PREFIX
from prefect_resilience.stores import open_store


def test_list_shows_the_sum_over_the_processes(tmp_path: Any, cli: Any) -> None:
    url = f"sqlite:///{tmp_path}/limits.db"
    done = cli("limits", "list", "--store", url)
    assert done.code == 0
    assert "There are no adaptive limits in" in done.out
    store = open_store(url)
    for process, number in (("a", 12), ("b", 8)):
        value = {"name": "llm", "number": number, "in_flight": 5, "waiting": 1, "base": 0.1234}
        store.swap(f"{PREFIX}llm/{process}", 0, value)
    store.swap(f"{PREFIX}kg/a", 0, {"name": "kg", "number": 3, "in_flight": 0, "waiting": 0, "base": 0})
    done = cli("limits", "list", "--store", url)
    assert (done.code, done.err) == (0, "")
    rows = [" ".join(line.split()) for line in done.out.splitlines()]
    assert "kg 3 0 0 1 3" in rows
    assert "llm 20 10 2 2 8 to 12 0.123 s" in rows
    done = cli("limits", "list", "--store", url, "--json")
    shown = [(one["name"], one["number"], one["processes"]) for one in done.json]
    assert shown == [("kg", 3, 1), ("llm", 20, 2)]
