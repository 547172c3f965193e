"""Every field of the document, and every word of a change, through a life of a circuit."""

import json
import math
from typing import Any

import pytest

from prefect_resilience.guards.circuits import document as learning
from prefect_resilience.guards.circuits.document import HISTORY_KEPT
from prefect_resilience.guards.circuits.machine import (
    Acquire,
    CircuitDocument,
    Event,
    Force,
    Record,
    Reset,
    Tick,
    Transition,
    new,
    read,
    step,
)
from prefect_resilience.guards.circuits.model import CircuitPolicy
from tests.guards.circuits.bench import NOW, Bench, Refusal

POLICY = CircuitPolicy(failure_threshold=3, slow_call=1.0, success_threshold=2, probe_lease=60)


def lived(events: list[tuple[float, Event]], policy: CircuitPolicy = POLICY) -> tuple[Any, list[Transition]]:
    """The document after events, each so many seconds after NOW, and the last one's changes."""
    document, changes = new(), tuple[Transition, ...]()
    for after, event in events:
        document, changes = step(document, event, NOW + after, policy)
    return document, list(changes)


def failed(generation: int, number: int = 1, **more: Any) -> Record:
    return Record(runs=(("f", number),), generation=generation, **more)


OPENED: list[tuple[float, Event]] = [(0, failed(1, 3, last_error="503"))]
HALF_OPEN: list[tuple[float, Event]] = [*OPENED, (30, Acquire("p"))]


def test_a_generation_is_in_the_history_once_as_it_came_to_be() -> None:
    forced = [(0.0, Force("forced_open", "for now", NOW + 60)), (7.0, Force("forced_open", "for ever"))]
    document, _ = lived([*forced])
    assert document["history"] == [[2, NOW, "forced_open", None]]


def test_the_history_is_bounded_and_has_the_latest() -> None:
    events: list[tuple[float, Event]] = [(number, Reset()) for number in range(HISTORY_KEPT + 3)]
    document, _ = lived(events)
    assert [entry[0] for entry in document["history"]] == list(range(5, HISTORY_KEPT + 5))
    assert len(json.dumps(document["history"])) < 60 * HISTORY_KEPT


def test_an_operators_opening_has_no_limit() -> None:
    document, _ = lived([(0, Force("forced_open", "by hand", NOW + 1e8))])
    assert step(document, Tick(), NOW + 1, POLICY) == (document, ())


def test_an_adaptive_circuit_learns_what_leaves_its_window() -> None:
    policy = CircuitPolicy(
        adaptive=True, window=4, failure_threshold=100, failure_rate=1.0, baseline_memory=7200
    )
    document: CircuitDocument = new()
    expected: Any = None
    for number, outcome in enumerate(["f", "s", "F", "S", "s", "f", "s"]):
        run: Any = (outcome, 1)
        document, _ = step(document, Record(runs=(run,), generation=1), NOW + number, policy)
        # four calls stay in the window; the fifth to the seventh push out the first to the third
        if number >= 4:
            gone = int("fsF"[number - 4] in "fF")
            expected = learning.learn(expected, 1, gone, NOW + number, 7200)
        assert document["baseline"] == expected


def test_what_opened_an_adaptive_circuit_that_knew_nothing_is_learnt() -> None:
    policy = CircuitPolicy(adaptive=True, failure_threshold=3, baseline_memory=7200)
    record = Record(runs=(("s", 2), ("f", 3)), generation=1)
    document, changes = step(new(), record, NOW, policy)
    assert [change.reason for change in changes] == ["3 failures in a row"]
    assert document["baseline"] == learning.learn(None, 5, 3, NOW, 7200)
    # and what is known already is not learnt twice: these calls are in the window still
    known = {"calls": 1000.0, "failures": 100.0, "at": NOW}
    document, _ = step({**new(), "baseline": known}, Record(runs=(("f", 20),), generation=1), NOW, policy)
    assert (document["state"], document["baseline"]) == ("open", known)


@pytest.mark.parametrize("floor", [0.05, 0.6])
def test_an_adaptive_circuit_opens_on_a_rise_over_what_is_usual(floor: float) -> None:
    policy = CircuitPolicy(adaptive=True, failure_threshold=1000, minimum_calls=20, failure_rate_floor=floor)
    baseline = {"calls": 1000.0, "failures": 100.0, "at": NOW}
    usual = learning.usual(baseline, policy.failure_rate)
    for failures in range(21):
        runs: Any = (("s", 20 - failures), ("f", failures))
        document, _ = step({**new(), "baseline": baseline}, Record(runs=runs, generation=1), NOW, policy)
        risen = usual is not None and learning.is_rise(failures, 20, usual, floor)
        assert (document["state"] == "open") == risen, failures


@pytest.mark.parametrize(
    ("field", "value"),
    [
        *[(field, value) for field in ("opened_at", "retry_at", "hold_until") for value in ("1", [])],
        *[(field, value) for field in ("reason", "last_error") for value in (1, [])],
        *[
            (field, value)
            for field in ("generation", "failures_in_row", "successes", "slow_successes", "openings")
            for value in (None, "1", 1.5)
        ],
        *[(field, math.nan) for field in ("retry_at", "hold_until", "updated_at")],
        ("retry_at", math.inf),
        ("openings", -1),
        ("probe_failures", "two"),
        ("updated_at", None),
        ("state", "ajar"),
        ("leases", []),
        ("leases", {"p": 1}),
        ("leases", {"p": [1]}),
        ("leases", {"p": [1, "2"]}),
        ("leases", {"p": [1, 2, 3]}),
        ("leases", {"p": [1, math.nan]}),
        ("window", {}),
        ("window", {"last": 3, "recent": "ss", "calls": 3, "failures": 0, "slow": 0}),
        *[
            ("baseline", dict(zip(("calls", "failures", "at"), numbers, strict=False)))
            for numbers in (
                [],
                [1.0, 0.0],
                ["1", 0.0, 0.0],
                [math.inf, 0.0, 0.0],
                [1.0, 2.0, 0.0],
                [1e9, 0.0, 0.0],
                [1.0, -1.0, 0.0],
            )
        ],
        ("baseline", 7),
        ("retry_at", None),
    ],
)
def test_one_damaged_field_and_the_document_is_a_new_one(field: str, value: Any) -> None:
    document, _ = lived(OPENED)
    assert read(document) == document
    assert read({**document, field: value}) == new()


@pytest.mark.parametrize("value", [None, 7, [], {}])
def test_what_is_no_document_is_read_as_a_new_one(value: object) -> None:
    assert read(value) == new()


def test_whole_numbers_are_times_too() -> None:
    document, _ = lived(HALF_OPEN)
    whole = {**document, "leases": {"p": [1, 2]}, "opened_at": 1, "updated_at": 1}
    assert read(whole) == whole


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
