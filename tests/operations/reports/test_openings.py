"""When circuits were open: what is told equals what a caller would have met at each second."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_resilience.guards.circuits import machine
from prefect_resilience.guards.circuits.document import HISTORY_KEPT
from prefect_resilience.guards.circuits.model import CircuitEntered, CircuitPolicy, CircuitSnapshot
from prefect_resilience.guards.circuits.view import snapshot_of
from prefect_resilience.operations.reports.figures import REJECTING, circuits_of

NAME = "c"
SINCE, UNTIL = 100, 200
POLICY = CircuitPolicy(failure_threshold=1, open_for=8, open_max=32, success_threshold=1, probe_lease=5)


def change(at: float, state: str, generation: int, retry_at: float | None = None) -> CircuitEntered:
    return CircuitEntered(generation=generation, at=at, state=state, retry_at=retry_at)


# -- against a simulation: the circuit's own machine, looked at every second


class Life:
    """A circuit's life: its document, the changes that events tell of, and what it was at each second."""

    def __init__(self) -> None:
        self.document = machine.new()
        self.reported: list[float] = []
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
            if in_a_run and one.after == "open":
                self.reported.append(one.at)


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
    reported = len([at for at in life.reported if SINCE <= at < UNTIL])
    made = circuits_of({NAME: reported} if reported else {}, [now], SINCE, UNTIL)
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


def figures(*history: CircuitEntered, openings: int = 0, state: str = "closed"):
    now = CircuitSnapshot(name=NAME, state=state, history=history)
    (circuit,) = circuits_of({NAME: openings} if openings else {}, [now], 0, 100)
    return circuit.openings, circuit.seconds_open, circuit.complete


def test_an_opening_that_no_call_ended_lasts_until_a_probe_might_have_been_made():
    assert figures(change(10, "open", 2, 40), openings=1) == (1, 30, True)
    assert figures(change(10, "open", 2, 400)) == (1, 90, True)
    assert figures(change(10, "forced_open", 2)) == (1, 90, True)


def test_what_the_document_no_longer_has_is_a_lower_bound():
    known = (change(60, "half_open", 31), change(70, "open", 32, 80))
    assert figures(*known) == (1, 10, False)
    assert figures(*known, openings=9) == (9, 10, False)
    # Before the first change that is known, the circuit may have been open.
    assert figures(change(70, "forced_open", 32, 80)) == (0, 10, False)


def test_those_in_trouble_first_and_the_quiet_ones_not_at_all():
    history = (change(10, "open", 2, 50), change(20, "half_open", 3), change(25, "open", 4, 95))
    now = [
        CircuitSnapshot(name="b", history=(change(5, "open", 2, 50), change(7, "closed", 3))),
        CircuitSnapshot(name="a", history=history),
        CircuitSnapshot(name="quiet"),
        CircuitSnapshot(name="off", state="disabled"),
    ]
    assert [
        (circuit.name, circuit.openings, circuit.seconds_open, circuit.state)
        for circuit in circuits_of({}, now, 0, 100)
    ] == [("a", 2, 80.0, "closed"), ("b", 1, 2.0, "closed"), ("off", 0, 0.0, "disabled")]
