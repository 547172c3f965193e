"""Which task runs a killed process left behind: pure."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_resilience.durable.batches.run_passes import (
    SETTLES,
    SKEW,
    RunState,
    UnfinishedRun,
    left_behind,
    passes_of,
)

AT = 1_800_000_000.0
TYPES = {"AwaitingRetry": "SCHEDULED"}


def passes(*named, counted=True):
    """`named` are pairs of a state's name and its second."""
    states = [RunState(TYPES.get(name, name.upper()), name, AT + at) for name, at in named]
    found = passes_of(states)
    return passes_of(states, run_count=len(found) if counted else None)


def unfinished(state="Running", since=5.0, /, **more) -> UnfinishedRun:
    return UnfinishedRun("t", state.upper(), state, AT + since, **more)


KILLED = (("Running", 0), ("Crashed", 20))
AGAIN = (*KILLED, ("AwaitingRetry", 31), ("Pending", 33), ("Running", 35))


def closed(run, run_passes, now, **more) -> list[str]:
    return [*left_behind([run], run_passes, AT + now, **more).values()]


def test_what_a_crashed_pass_left_running_or_pending():
    said = "Unfinished after pass 1 of its flow run, which ended Crashed at 2027-01-15 08:00:20 UTC. It was "
    assert closed(unfinished(count=1), passes(*KILLED), 40) == [
        f"{said}Running since 2027-01-15 08:00:05 UTC."
    ]
    assert closed(unfinished("Pending", 6), passes(*AGAIN), 40) == [
        f"{said}Pending since 2027-01-15 08:00:06 UTC."
    ]


@pytest.mark.parametrize(
    ("run", "why"),
    [
        (unfinished("Running", 36, count=2), "its pass goes on"),
        (unfinished("Pending", 36), "it was made in the pass that goes on"),
        (unfinished("Paused"), "somebody resumes it"),
        (unfinished("Pending", elsewhere=True), "a task worker takes it"),
        (unfinished("Pending", 29), "it was made after the end of the pass"),
    ],
)
def test_what_may_still_go_on_is_left(run, why):
    assert closed(run, passes(*AGAIN), 100) == [], why


def test_what_has_not_settled_is_left():
    assert closed(unfinished(count=1), passes(*KILLED), 20 + SETTLES - 1) == []
    assert closed(unfinished("Running", 24, count=1), passes(*KILLED), 24 + SETTLES - 1) == []
    assert closed(unfinished("Running", 24, count=1), passes(*KILLED), 24 + SETTLES)
    assert closed(unfinished(count=1), passes(*KILLED), 20 + 50, settles=60) == []


def test_a_run_that_gave_a_sign_of_life_after_its_end_is_left():
    assert closed(unfinished(count=1), passes(*KILLED), 400, heartbeats=[AT + 200]) == []
    assert closed(unfinished(count=1), passes(*KILLED), 400, heartbeats=[AT + 20 + SKEW, AT])
    # Once another pass has begun, signs of life are its own.
    assert closed(unfinished(count=1), passes(*AGAIN), 400, heartbeats=[AT + 200])
    assert closed(unfinished(count=1), passes(*AGAIN), 400, heartbeats=[AT + 28]) == []


def test_passes_that_ended_in_order_are_left_where_that_is_asked_for():
    ended = passes(("Running", 0), ("Failed", 20))
    assert closed(unfinished("Pending", 5), ended, 100, only_crashed=True) == []
    assert closed(unfinished("Pending", 5), ended, 100)
    assert closed(unfinished(count=1), passes(*KILLED), 100, only_crashed=True)


def test_a_pass_whose_end_nobody_reported():
    found = passes(("Running", 0), ("Pending", 30), ("Running", 35))
    (said,) = closed(unfinished(count=1), found, 100)
    assert said.startswith(
        "Unfinished after pass 1 of its flow run, which has an unknown end. It was Running since"
    )
    assert closed(unfinished("Pending", 5), found, 100) == [], "by its time alone nobody can tell"
    assert closed(unfinished(count=1), passes(("Running", 0)), 1_000) == [], "it goes on"


NAMES = st.sampled_from(["Running", "Pending", "AwaitingRetry", "Crashed", "Failed", "Completed", "Paused"])


@settings(deadline=None)
@given(
    st.lists(NAMES, max_size=12).map(lambda names: [(name, 20 * place) for place, name in enumerate(names)]),
    st.sampled_from(["Running", "Pending", "Scheduled", "Paused"]),
    st.integers(-10, 300),
    st.integers(0, 3),
    st.integers(0, 400),
    st.booleans(),
)
def test_never_one_that_may_live(named, state, since, count, now, counted):
    """Nothing of a pass that goes on, nothing that moved a moment ago; and never fewer as time passes."""
    found = passes(*named, counted=counted)
    run = unfinished(state, since, count=count)
    if closed(run, found, now):
        assert state != "Paused"
        assert now - since >= SETTLES
        goes_on = found[-1] if not found[-1].over else None
        assert goes_on is None or since < goes_on.began - AT or count not in (0, goes_on.count)
        assert closed(run, found, now + 10)
        assert closed(run, found, now, only_crashed=True) in ([], closed(run, found, now))
