"""Every field of the document, and every word of a change, through a life of a circuit."""

from __future__ import annotations

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

NOW = 1_000_000.0
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


def test_opened() -> None:
    document, changes = lived(OPENED)
    assert {**document, "window": None} == {
        **new(),
        "state": "open",
        "generation": 2,
        "failures_in_row": 3,
        "opened_at": NOW,
        "retry_at": NOW + 30,
        "openings": 1,
        "reason": "3 failures in a row",
        "last_error": "503",
        "history": [[2, NOW, "open", NOW + 30]],
        "updated_at": NOW,
    }
    assert changes == [Transition("closed", "open", NOW, "3 failures in a row", 2, NOW + 30, "503")]


def test_half_open() -> None:
    document, changes = lived(HALF_OPEN)
    assert changes == [
        Transition("open", "half_open", NOW + 30, "open period elapsed; waiting for a probe", 3, None, "503")
    ]
    assert document["leases"] == {"p": [NOW + 30, NOW + 90]}
    assert (document["state"], document["opened_at"], document["retry_at"]) == ("half_open", NOW, None)
    assert (document["successes"], document["slow_successes"], document["updated_at"]) == (0, 0, NOW + 30)


def test_a_slow_probe_is_counted() -> None:
    document, changes = lived([*HALF_OPEN, (31, Record(runs=(("S", 1),), generation=3, owner="p"))])
    assert (document["successes"], document["slow_successes"], document["leases"]) == (1, 1, {})
    assert (document["state"], document["hold_until"], changes) == ("half_open", None, [])


def test_slow_probes_open_it() -> None:
    document, changes = lived([*HALF_OPEN, (31, Record(runs=(("S", 2),), generation=3, owner="p"))])
    assert changes == [Transition("half_open", "open", NOW + 31, "the probes were slow", 4, NOW + 46, "503")]
    assert (document["openings"], document["opened_at"]) == (2, NOW + 31)


def test_half_of_the_probes_slow_is_not_all() -> None:
    runs = (("s", 1), ("S", 1))
    document, changes = lived([*HALF_OPEN, (31, Record(runs=runs, generation=3, owner="p"))])
    assert (document["state"], [change.reason for change in changes]) == (
        "closed",
        ["the service has recovered"],
    )


@pytest.mark.parametrize("outcome", ["f", "F"])
def test_a_probe_that_fails(outcome: Any) -> None:
    record = Record(runs=((outcome, 1),), generation=3, owner="p", retry_after=100.0, last_error="still 503")
    document, changes = lived([*HALF_OPEN, (31, record)])
    assert changes == [Transition("half_open", "open", NOW + 31, "a probe failed", 4, NOW + 131, "still 503")]
    assert (document["failures_in_row"], document["openings"], document["reason"]) == (4, 2, "a probe failed")


def test_a_success_in_between_ends_the_pause_that_was_asked_for() -> None:
    held = [(0.0, failed(1, 1, retry_after=500.0))]
    assert lived(held)[0]["hold_until"] == NOW + 500
    assert lived([*held, (1, Record(runs=(("s", 1),), generation=1))])[0]["hold_until"] is None
    after_the_probe = [*OPENED, (30, Acquire("p")), (31, Record(runs=(("s", 1),), generation=3, owner="p"))]
    assert lived(after_the_probe)[0]["hold_until"] is None
    asked = [(0.0, failed(1, 3, retry_after=40.0)), (40.0, Acquire("p"))]
    probed = [*asked, (41.0, Record(runs=(("s", 1),), generation=3, owner="p"))]
    assert (lived(asked)[0]["hold_until"], lived(probed)[0]["hold_until"]) == (NOW + 40, None)


def test_recovered() -> None:
    document, changes = lived([*HALF_OPEN, (31, Record(runs=(("s", 2),), generation=3, owner="p"))])
    assert changes == [
        Transition("half_open", "closed", NOW + 31, "the service has recovered", 4, None, "503")
    ]
    assert document == {
        **new(),
        "generation": 4,
        "openings": 1,
        "opened_at": NOW,
        "reason": "the service has recovered",
        "last_error": "503",
        "history": [
            [2, NOW, "open", NOW + 30],
            [3, NOW + 30, "half_open", None],
            [4, NOW + 31, "closed", None],
        ],
        "updated_at": NOW + 31,
    }


@pytest.mark.parametrize("until", [None, NOW + 99])
def test_forced_open(until: float | None) -> None:
    before = [(0.0, failed(1, 1, retry_after=9.0, last_error="503"))]
    document, changes = lived([*before, (5, Force("forced_open", "maintenance", until))])
    assert changes == [Transition("closed", "forced_open", NOW + 5, "maintenance", 2, until, None)]
    assert (document["opened_at"], document["retry_at"], document["hold_until"]) == (NOW + 5, until, None)
    assert (document["reason"], document["last_error"]) == ("maintenance", None)


def test_disabled() -> None:
    document, changes = lived([*OPENED, (5, Force("disabled", "debugging", NOW + 99))])
    assert changes == [Transition("open", "disabled", NOW + 5, "debugging", 3, None, None)]
    assert (document["opened_at"], document["retry_at"], document["reason"]) == (None, None, "debugging")


def test_forced_closed() -> None:
    document, changes = lived([*OPENED, (5, Force("closed", "mended"))])
    assert changes == [Transition("open", "closed", NOW + 5, "mended", 3, None, "503")]
    assert document == {
        **new(),
        "generation": 3,
        "opened_at": NOW,
        "openings": 1,
        "reason": "mended",
        "last_error": "503",
        "history": [[2, NOW, "open", NOW + 30], [3, NOW + 5, "closed", None]],
        "updated_at": NOW + 5,
    }
    again, changes = step(document, Force("closed", "once more"), NOW + 6, POLICY)
    assert (again["generation"], again["reason"], changes) == (4, "once more", ())
    assert again["history"][-1] == [4, NOW + 6, "closed", None], "no generation is missing"


def test_forced_closed_forgets_the_counts_of_half_open() -> None:
    probed = [*HALF_OPEN, (31, Record(runs=(("S", 1),), generation=3, owner="p"))]
    document, _ = lived([*probed, (32, Force("closed", "mended"))])
    assert (document["successes"], document["slow_successes"], document["window"]) == (0, 0, None)


def test_a_reset() -> None:
    document, changes = lived([*OPENED, (5, Reset())])
    assert changes == [Transition("open", "closed", NOW + 5, "reset", 3, None, "503")]
    history = [[2, NOW, "open", NOW + 30], [3, NOW + 5, "closed", None]]
    assert document == {
        **new(),
        "generation": 3,
        "reason": "reset",
        "history": history,
        "updated_at": NOW + 5,
    }


def test_a_generation_is_in_the_history_once_as_it_came_to_be() -> None:
    forced = [(0.0, Force("forced_open", "for now", NOW + 60)), (7.0, Force("forced_open", "for ever"))]
    document, _ = lived([*forced])
    assert document["history"] == [[2, NOW, "forced_open", None]]
    document, _ = lived([(0, Force("forced_open", "for now", NOW + 60)), (60, Force("forced_open", "again"))])
    assert document["history"] == [[2, NOW, "forced_open", NOW + 60], [2, NOW + 60, "forced_open", None]]


def test_the_history_is_bounded_and_has_the_latest() -> None:
    events: list[tuple[float, Event]] = [(number, Reset()) for number in range(HISTORY_KEPT + 3)]
    document, _ = lived(events)
    assert [entry[0] for entry in document["history"]] == list(range(5, HISTORY_KEPT + 5))
    assert len(json.dumps(document["history"])) < 60 * HISTORY_KEPT


@pytest.mark.parametrize(
    "history",
    [
        7,
        [7],
        [[]],
        [["2", NOW, "open", None]],
        [[2, "now", "open", None]],
        [[2, NOW, "ajar", None]],
        [[2, NOW, "open", "soon"]],
    ],
)
def test_a_damaged_history_costs_nothing_else(history: Any) -> None:
    document, _ = lived(OPENED)
    assert read({**document, "history": history}) == {**document, "history": []}
    assert read(document) == document


def test_what_changes_nothing_is_no_news() -> None:
    document, _ = lived(OPENED)
    assert step(document, Tick(), NOW + 1, POLICY) == (document, ())


def test_a_clock_set_back_moves_what_runs() -> None:
    document, _ = step(lived(OPENED)[0], Tick(), NOW - 1000, POLICY)
    assert (document["opened_at"], document["retry_at"]) == (NOW - 1000, NOW - 970)
    document, _ = step(lived(HALF_OPEN)[0], Tick(), NOW, POLICY)
    assert document["leases"] == {"p": [NOW, NOW + 60]}
    document, _ = step(lived(HALF_OPEN)[0], Tick(), NOW + 30, POLICY)
    assert document["leases"] == {"p": [NOW + 30, NOW + 90]}
    document, _ = step(lived(HALF_OPEN)[0], Tick(), NOW + 90, POLICY)
    assert document["leases"] == {}


@pytest.mark.parametrize(
    ("until", "set_back", "expected"), [(NOW + 60, 1000, 60), (NOW + 1e6, 1, 1e6), (None, 1000, None)]
)
def test_a_clock_set_back_moves_an_operators_opening(
    until: float | None, set_back: float, expected: float | None
) -> None:
    document, _ = lived([(0, Force("forced_open", "by hand", until))])
    document, changes = step(document, Tick(), NOW - set_back, POLICY)
    assert changes == ()
    assert document["retry_at"] == (None if expected is None else NOW - set_back + expected)
    if expected is not None:
        document, _ = step(document, Tick(), NOW - set_back + expected, POLICY)
        assert document["state"] == "half_open"


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
