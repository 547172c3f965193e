"""When circuits were open: what is told equals what a caller would have met at each second."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_resilience.guards.circuits import machine
from prefect_resilience.guards.circuits.document import HISTORY_KEPT
from prefect_resilience.guards.circuits.model import CircuitEntered, CircuitPolicy, CircuitSnapshot
from prefect_resilience.guards.circuits.view import snapshot_of
from prefect_resilience.operations.reports.openings import REJECTING, StateChange, circuits_of

NAME = "c"
SINCE, UNTIL = 100, 200
POLICY = CircuitPolicy(failure_threshold=1, open_for=8, open_max=32, success_threshold=1, probe_lease=5)


def change(at: float, before: str | None, after: str, generation: int, retry_at: float | None = None):
    return StateChange(at, after, generation, before, retry_at)


# -- against a simulation: the circuit's own machine, looked at every second


class Life:
    """A circuit's life: its document, the changes that events tell of, and what it was at each second."""

    def __init__(self) -> None:
        self.document = machine.new()
        self.told: list[StateChange] = []
        self.openings: list[float] = []
        self.refusing: set[int] = set()

    def live(self, script: dict[int, list[tuple[str, bool]]]) -> None:
        for second in range(UNTIL + 50):
            for what, in_a_run in script.get(second, []):
                self._does(what, in_a_run, float(second))
            if snapshot_of(NAME, self.document, second).state in REJECTING:
                self.refusing.add(second)

    def _does(self, what: str, in_a_run: bool, now: float) -> None:
        generation = self.document["generation"]
        events: dict[str, Any] = {
            "fail": machine.Record(generation, (("f", 1),), owner="p"),
            "work": machine.Record(generation, (("s", 1),), owner="p"),
            "ask": machine.Acquire("p"),
            "open": machine.Force("forced_open", "by hand"),
            "open a while": machine.Force("forced_open", "by hand", now + 11),
            "close": machine.Force("closed", "by hand"),
            "disable": machine.Force("disabled", "by hand"),
            "reset": machine.Reset(),
        }
        self.document, changes = machine.step(self.document, events[what], now, POLICY)
        for one in changes:
            if one.after in REJECTING and one.before not in REJECTING:
                self.openings.append(one.at)
            if in_a_run:
                self.told.append(change(one.at, one.before, one.after, one.generation, one.retry_at))


acts = st.tuples(
    st.integers(0, UNTIL + 49),
    st.sampled_from(
        ["fail", "fail", "ask", "ask", "work", "open", "open a while", "close", "disable", "reset"]
    ),
    st.booleans(),
)


@pytest.mark.slow
@settings(deadline=None, max_examples=500)
@given(st.lists(acts, max_size=60), st.booleans())
def test_what_is_told_is_what_callers_met(script, all_in_runs):
    by_second: dict[int, list[tuple[str, bool]]] = {}
    for second, what, in_a_run in script:
        by_second.setdefault(second, []).append((what, in_a_run or all_in_runs))
    life = Life()
    life.live(by_second)
    now = snapshot_of(NAME, life.document, UNTIL + 50)
    inside = [one for one in life.told if SINCE <= one.at < UNTIL]
    made = circuits_of({NAME: inside}, [now], SINCE, UNTIL)
    seconds = len([second for second in life.refusing if SINCE <= second < UNTIL])
    openings = len([at for at in life.openings if SINCE <= at < UNTIL])
    if not made:
        assert (seconds, openings, now.state) == (0, 0, "closed")
        return
    (one,) = made
    if one.complete:
        assert (one.seconds_open, one.openings) == (seconds, openings)
    else:
        assert one.seconds_open <= seconds
        assert one.openings <= openings
    if len(now.history) < HISTORY_KEPT:
        assert one.complete, "the document knows all of them"


# -- by hand


def figures(*changes: StateChange, now: CircuitSnapshot | None = None):
    (one,) = circuits_of({NAME: list(changes)}, [] if now is None else [now], 0, 100)
    return one.openings, one.seconds_open, one.complete


def test_an_opening_that_no_call_ended_lasts_until_a_probe_might_have_been_made():
    assert figures(change(10, "closed", "open", 2, 40)) == (1, 30, True)
    assert figures(change(10, "closed", "open", 2, 400)) == (1, 90, True)
    assert figures(change(10, "closed", "forced_open", 2)) == (1, 90, True)


def test_what_was_done_outside_a_run_is_in_the_document():
    history = (
        CircuitEntered(generation=2, at=10.0004, state="open", retry_at=40),
        CircuitEntered(generation=3, at=15, state="closed"),
        CircuitEntered(generation=4, at=50, state="forced_open", retry_at=60),
    )
    now = CircuitSnapshot(name=NAME, state="half_open", generation=5, history=history)
    opened, secs, complete = figures(change(10, "closed", "open", 2, 40), now=now)
    assert (opened, complete) == (2, True)
    assert secs == pytest.approx(5 + 10, abs=0.001)


def test_what_nobody_knows_is_the_least_that_it_was():
    # The change to generation 3 is told by nobody: it may have closed the circuit at once.
    known = (change(10, "closed", "open", 2, 40), change(70, "closed", "open", 4, 80))
    assert figures(*known) == (2, 10, False)
    # Left as it was entered: nothing happened to it but what is not said to have begun another generation.
    known = (change(10, "closed", "forced_open", 2), change(70, "forced_open", "closed", 4))
    assert figures(*known) == (1, 60, False)
    assert figures(change(30, "open", "closed", 7)) == (0, 0, False)
    assert figures(change(30, "closed", "open", 7, 50)) == (1, 20, False)


def test_what_is_missing_outside_the_period_does_not_matter():
    before = change(-50, "half_open", "closed", 9)
    assert figures(before, change(30, "closed", "open", 10, 50)) == (1, 20, True)
    closed = change(40, "open", "closed", 3)
    later = (change(130, "closed", "open", 4, 150), change(160, "closed", "open", 9, 190))
    assert figures(change(30, "closed", "open", 2, 50), closed, *later) == (1, 10, True)
    earlier = change(-70, "half_open", "open", 5, 20)
    assert figures(earlier, change(-50, "open", "closed", 9), change(30, "closed", "open", 10, 50)) == (
        1,
        20,
        True,
    )


def test_a_document_that_was_forgotten_begins_anew():
    first = (change(10, "closed", "open", 2, 15), change(15, "open", "half_open", 3))
    anew = change(60, "closed", "open", 2, 70)
    assert figures(*first, change(16, "half_open", "closed", 4), anew) == (2, 15, True)


def test_a_store_that_is_unavailable_leaves_lower_bounds():
    (one,) = circuits_of({NAME: [change(10, "closed", "open", 2, 40)]}, None, 0, 100)
    assert (one.openings, one.seconds_open, one.complete) == (1, 30, False)


def test_those_in_trouble_first_and_the_quiet_ones_not_at_all():
    events = {
        "a": [
            StateChange(10, "open", 2, None, 50),
            StateChange(20, "half_open", 3),
            StateChange(25, "open", 4, None, 95),
        ],
        "b": [StateChange(5, "open", 2, None, 50), StateChange(7, "closed", 3)],
        "by hand": [StateChange(90, "open", 2, None, 95), StateChange(91, "forced_open", 3)],
    }
    now = [CircuitSnapshot(name="quiet"), CircuitSnapshot(name="off", state="disabled")]
    made = circuits_of(events, now, 0, 100)
    assert [(one.name, one.openings, one.seconds_open, one.state) for one in made] == [
        ("a", 2, 80.0, None),
        ("by hand", 1, 10.0, None),
        ("b", 1, 2.0, None),
        ("off", 0, 0.0, "disabled"),
    ]
