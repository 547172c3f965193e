"""What the machine believes of a document that a store returned."""

from __future__ import annotations

import pytest

from prefect_resilience.guards.circuits.machine import Force, Reset, Tick, new, read, step
from prefect_resilience.guards.circuits.model import CircuitPolicy
from tests.guards.circuits.bench import NOW, Bench, Refusal


def test_texts_are_bounded() -> None:
    bench = Bench().calls(("f", 5), last_error="x" * 10_000)
    assert len(bench["last_error"]) == 300
    assert len(bench.does(Force("forced_open", "y" * 10_000))["reason"]) == 300


def test_a_document_is_read_as_it_is_with_what_a_later_version_added() -> None:
    bench = Bench(probes=2).opened()
    bench.asks("a", after=30)
    document = {**bench.document, "of_the_future": 1}
    assert read(document) == document
    after, _ = step(read(document), Reset(), NOW, CircuitPolicy())
    assert after["of_the_future"] == 1


SINCE = {"probe_failures": 0, "unanswered": 0, "baseline": None}
OLDER = {key: value for key, value in new().items() if key not in SINCE}
"""What versions before wrote."""


def test_a_document_of_an_older_version_is_read() -> None:
    bench = Bench()
    half_open = {**OLDER, "state": "half_open", "generation": 3, "successes": 1, "openings": 1}
    bench.document = read(half_open)
    assert bench.document == {**half_open, **SINCE}
    assert bench.probed("f").probed("s")["state"] == "closed"


@pytest.mark.parametrize("retry_at", [1e18, 1e300, NOW + 601, -1e18, -5, 0])
@pytest.mark.parametrize("opened_at", [None, NOW, 1e18, -5])
def test_no_document_keeps_calls_out_for_longer_than_the_policy_does(
    retry_at: float, opened_at: float | None
) -> None:
    bench = Bench()
    bench.document = read({**new(), "state": "open", "retry_at": retry_at, "opened_at": opened_at})
    assert bench["state"] == "open", "it is a document"
    refused = bench.asks("a")
    assert refused is None or (refused.retry_in or 0) <= 600
    assert bench.asks("a", after=600) is None


def test_a_lease_that_would_never_end_ends_as_others_do() -> None:
    bench = Bench(probe_lease=60)
    stuck = {**new(), "state": "half_open", "generation": 3, "leases": {"a": [NOW - 5, 1e18]}}
    bench.document = read(stuck)
    assert bench.asks("b") == Refusal(60)
    assert bench.asks("b", after=60) is None


def test_a_pause_that_the_server_asked_for_is_believed_for_a_day() -> None:
    bench = Bench().calls(("f", 5), retry_after=5000)
    assert bench.does(Tick(), after=1).opening == 5000
    bench.document = {**bench.document, "hold_until": 1e18, "retry_at": 1e18}
    assert bench.does(Tick()).opening == 86_400
