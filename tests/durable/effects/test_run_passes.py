"""The passes of a flow run, from its states, and the task runs of a killed process."""

import random
from dataclasses import replace
from datetime import UTC, datetime
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prefect.client.schemas.objects import State, StateType, TaskRun

from prefect_resilience.durable.batches.edge.closing import SETTLES, find_lost_runs
from prefect_resilience.durable.batches.run_passes import (
    RECOVERED,
    RunOrigin,
    Start,
    borders,
    pass_of_task_run,
    passes_of,
)
from prefect_resilience.telemetry.model import FINAL, StateSeen

AT = 1_800_000_000.0
TYPES = {
    "Running": "RUNNING", "Retrying": "RUNNING", "Completed": "COMPLETED", "Failed": "FAILED",
    "Crashed": "CRASHED", "Cancelled": "CANCELLED", "Cancelling": "CANCELLING", "Pending": "PENDING",
    "Scheduled": "SCHEDULED", "AwaitingRetry": "SCHEDULED", "Late": "SCHEDULED", "Resuming": "SCHEDULED",
    "Paused": "PAUSED", "Suspended": "PAUSED",
}  # fmt: skip


def states(*named) -> list[StateSeen]:
    """One state a second; a pair has a message."""
    made = []
    for second, one in enumerate(named):
        name, message = one if isinstance(one, tuple) else (one, "")
        made.append(StateSeen(TYPES[name], name, AT + second, message))
    return made


def starts(*named, origin=None) -> list[tuple[str, str, str]]:
    return [(one.start.cause, one.start.who, one.start.why) for one in passes_of(states(*named), origin)]


BY = "automation 'prefect-resilience: recover crashed runs' in flow run 'recover 1b'"
RECOVERY = ("AwaitingRetry", RECOVERED.format(by=BY, why="its run crashed: the process is gone"))
BUTTON = ("AwaitingRetry", "Retry from the UI")


def test_a_run_that_was_killed_recovered_and_retried_has_three_passes():
    found = passes_of(
        states(
            "Scheduled", "Pending", "Running", ("Crashed", "exited with -9"),
            RECOVERY, "Late", "Pending", "Running", ("Failed", "ValueError: no"),
            BUTTON, "Pending", "Running", "Completed",
        ),
        RunOrigin("SCHEDULE", "nightly", deployed=True),
        run_count=3,
    )  # fmt: skip
    assert [(one.number, one.end, one.message, one.seconds, one.over) for one in found] == [
        (1, "Crashed", "exited with -9", 1.0, True),
        (2, "Failed", "ValueError: no", 1.0, True),
        (3, "Completed", "", 1.0, True),
    ]
    assert [one.start for one in found] == [
        Start("schedule", "nightly", at=AT),
        Start("recovery", BY, "its run crashed: the process is gone", AT + 4),
        Start("retry button", at=AT + 9),
    ]
    assert [one.count for one in found] == [1, 2, 3]
    assert [one.crashed for one in found] == [True, False, False]


@pytest.mark.parametrize(
    ("origin", "before", "start"),
    [
        (RunOrigin("SCHEDULE", "0 5 * * *", deployed=True), "", ("schedule", "0 5 * * *", "")),
        (RunOrigin("AUTOMATION", "on a file", deployed=True), "", ("automation", "on a file", "")),
        (RunOrigin("USER", "ada", deployed=True), "please", ("person", "ada", "please")),
        (RunOrigin(deployed=True), "Run from the Prefect UI", ("person", "", "in the Prefect UI")),
        (RunOrigin(deployed=True), "", ("unknown", "", "")),
        (RunOrigin(), "", ("program", "", "")),
        (RunOrigin(inner=True, deployed=True), "", ("parent", "", "")),
    ],
)  # fmt: skip
def test_who_started_a_run(origin, before, start):
    assert starts(("Scheduled", before), "Pending", "Running", origin=origin) == [start]


@pytest.mark.parametrize(
    ("between", "start"),
    [
        ([BUTTON, "Pending"], ("retry button", "", "")),
        ([("Scheduled", "Retried via CLI"), "Pending"], ("retry command", "", "")),
        ([("Scheduled", "somebody's script"), "Pending"], ("unknown", "", "somebody's script")),
        ([], ("unknown", "", "")),
        ([("AwaitingRetry", "Recovered by root@box: now"), "Pending"], ("recovery", "root@box", "now")),
    ],
)  # fmt: skip
def test_who_started_it_again_after_an_end(between, start):
    assert starts("Pending", "Running", "Failed", *between, "Running")[1] == start


def test_a_flows_own_retry_goes_on_in_its_process_and_a_workers_in_another():
    why = "Flow run encountered an exception: ValueError: no"
    assert starts("Pending", "Running", ("AwaitingRetry", why), "Running")[1] == ("flow retry", "", why)
    assert starts("Pending", "Running", "AwaitingRetry", "Pending", "Running")[1] == ("worker", "", "")
    assert passes_of(states("Running", ("AwaitingRetry", why), "Running"))[0].end == "AwaitingRetry"


def test_a_pause_is_part_of_its_pass_and_a_suspension_is_not():
    (one,) = passes_of(states("Running", "Paused", "Running", "Completed"))
    assert (one.began, one.ended, one.end) == (AT, AT + 3, "Completed")
    found = passes_of(states("Running", "Suspended", "Resuming", "Pending", "Running", "Completed"))
    assert [(one.start.cause, one.end) for one in found] == [
        ("program", "Resuming"),
        ("resumed", "Completed"),
    ]


# -- properties

ANY = st.lists(st.sampled_from([*TYPES, BUTTON, RECOVERY]), max_size=25)


@settings(deadline=None)
@given(ANY, st.randoms(use_true_random=False))
def test_passes_are_in_order_apart_and_one_for_each_beginning(named, chance: random.Random):
    given_ = states(*named)
    found = passes_of(given_, run_count=3)
    shuffled = [*given_]
    chance.shuffle(shuffled)
    assert passes_of(shuffled, run_count=3) == found
    beginnings = [state.at for state in given_ if state.type == "RUNNING"]
    assert [one.number for one in found] == [*range(1, len(found) + 1)]
    assert {one.began for one in found} <= set(beginnings)
    assert bool(found) == bool(beginnings)
    for before, after in pairwise(found):
        assert before.over
        assert before.began < after.began
        assert before.ended is None or before.began < before.ended < after.began
    for one in found:
        assert one.end_type in {"", "SCHEDULED", *FINAL}
        assert one.over is (one.ended is not None or one is not found[-1])
        assert (one.ended is None) == (one.end == "") == (one.seconds is None)
    assert sorted(borders(found)) == borders(found)


@settings(deadline=None)
@given(ANY, st.floats(-5, 40), st.integers(0, 4))
def test_each_task_run_belongs_to_the_pass_in_which_it_was_made(named, at, count):
    found = passes_of(states(*named))
    of = pass_of_task_run(found, count, AT + at)
    assert (of is None) == (not found)
    inside = [one for one in found if one.ended and one.began <= AT + at <= one.ended]
    assert not inside or of == inside[0], "no count is known: the time says it"
    if found:
        numbered = tuple(replace(one, count=one.number) for one in found)
        of = pass_of_task_run(numbered, count, AT + at)
        assert of is not None
        assert not 1 <= count <= len(found) or of.number == count


# -- which task runs a killed process left behind


def passes(*named, counted=True):
    """`named` are pairs of a state's name and its second."""
    came = [StateSeen(TYPES[name], name, AT + at) for name, at in named]
    return passes_of(came, run_count=len(passes_of(came)) if counted else None)


def unfinished(name="Running", since=5.0, /, count=0) -> TaskRun:
    at = datetime.fromtimestamp(AT + since, UTC)
    state = State(type=StateType(name.upper()), name=name, timestamp=at)
    return TaskRun(task_key="t", dynamic_key="0", flow_run_run_count=count, state=state)


KILLED = (("Running", 0), ("Crashed", 20))
AGAIN = (*KILLED, ("AwaitingRetry", 31), ("Pending", 33), ("Running", 35))


def closed(run, run_passes, now, **more) -> list[str]:
    return [*find_lost_runs([run], run_passes, AT + now, **more).values()]


def test_what_a_crashed_pass_left_running_or_pending():
    said = "Unfinished after pass 1 of its flow run, which ended Crashed at 2027-01-15 08:00:20 UTC. It was "
    assert closed(unfinished(count=1), passes(*KILLED), 40) == [
        f"{said}Running since 2027-01-15 08:00:05 UTC."
    ]
    assert closed(unfinished("Pending", 6), passes(*AGAIN), 40) == [
        f"{said}Pending since 2027-01-15 08:00:06 UTC."
    ]


def test_what_has_not_settled_is_left():
    assert closed(unfinished(count=1), passes(*KILLED), 20 + SETTLES - 1) == []
    assert closed(unfinished("Running", 24, count=1), passes(*KILLED), 24 + SETTLES - 1) == []
    assert closed(unfinished("Running", 24, count=1), passes(*KILLED), 24 + SETTLES)
    assert closed(unfinished(count=1), passes(*KILLED), 20 + 50, settles=60) == []


def test_a_pass_whose_end_was_not_reported():
    found = passes(("Running", 0), ("Pending", 30), ("Running", 35))
    (said,) = closed(unfinished(count=1), found, 100)
    assert said.startswith(
        "Unfinished after pass 1 of its flow run, which has an unknown end. It was Running since"
    )
    assert closed(unfinished("Pending", 5), found, 100) == [], "its time alone does not tell"
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
