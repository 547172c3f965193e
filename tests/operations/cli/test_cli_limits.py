"""`prefect-resilience limits list`, and the same rows on the dashboard's page."""

from typing import Any

import pytest

from prefect_resilience import SpendCap, SpendCapReachedError, TokenLimit
from prefect_resilience.guards.circuits.registry import forget_circuits
from prefect_resilience.guards.limits.usage import shares
from prefect_resilience.operations.dashboard.desk import Desk
from tests.guards.limits.hanging import end_threads


@pytest.fixture(autouse=True)
def first_calls():
    forget_circuits()
    shares.clear()


def ask(model: str, max_tokens: int) -> Any:
    return {"usage": {"completion_tokens": max_tokens}}


def test_limits_are_listed_with_their_room(url: str, cli: Any) -> None:
    assert cli("limits", "list").out.startswith(f"There are no token limits and no caps in {url} yet")
    TokenLimit("quiet", per_minute=1_000_000, estimate=1).call(int)
    TokenLimit("busy", per_minute=60_000, estimate=50_000).call(int)
    for cap in (SpendCap(usd=1, name="agents"), SpendCap(usd=0.01, per="day")):
        cap.call(ask, "gpt-4o", 900)
        end_threads()
    with pytest.raises(SpendCapReachedError):
        cap.call(ask, "gpt-4o", 900)
    listed = cli("limits", "list", "--json").json
    reached, busy, agents, quiet = listed
    assert (reached["per"].partition(" ")[0], reached["room"], reached["used"]) == ("day", "reached", 0.009)
    assert (busy["name"], busy["kind"]) == ("busy", "tokens")
    assert busy["room"].startswith("in ")
    assert (agents["name"], agents["allowed"], agents["used"]) == ("agents", 1, 0.009)
    assert (quiet["name"], quiet["per"], quiet["room"]) == ("quiet", "minute", "now")
    shown = cli("limits", "list")
    assert [name in shown.out for name in ("quiet", "busy", "agents", "reached")] == [True] * 4
    rows = Desk().read_limits()["limits"]
    assert [row["place"] for row in rows.values()] == [0, 1, 2, 3]
    assert rows["quiet minute"]["allowed"] == 1_000_000
