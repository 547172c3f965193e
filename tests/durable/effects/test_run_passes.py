"""The passes of a flow run, out of its states: pure."""

from __future__ import annotations

import random
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_resilience.durable.batches.audit import AuditEntry
from prefect_resilience.durable.batches.run_passes import (
    FINAL_TYPES,
    RECOVERED,
    RunOrigin,
    RunState,
    Start,
    borders,
    pass_of_task_run,
    passes_of,
)

AT = 1_800_000_000.0
TYPES = {
    "Running": "RUNNING", "Retrying": "RUNNING", "Completed": "COMPLETED", "Failed": "FAILED",
    "Crashed": "CRASHED", "Cancelled": "CANCELLED", "Cancelling": "CANCELLING", "Pending": "PENDING",
    "Scheduled": "SCHEDULED", "AwaitingRetry": "SCHEDULED", "Late": "SCHEDULED", "Resuming": "SCHEDULED",
    "Paused": "PAUSED", "Suspended": "PAUSED",
}  # fmt: skip


def states(*named) -> list[RunState]:
    """One state a second; a pair has a message."""
    made = []
    for second, one in enumerate(named):
        name, message = one if isinstance(one, tuple) else (one, "")
        made.append(RunState(TYPES[name], name, AT + second, message, f"s{second}"))
    return made


def starts(*named, origin=None, audit=()) -> list[tuple[str, str, str]]:
    return [
        (one.start.cause, one.start.who, one.start.why)
        for one in passes_of(states(*named), origin, audit=audit)
    ]


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
        (RunOrigin(scheduled=True, deployed=True), "", ("schedule", "", "")),
        (RunOrigin("AUTOMATION", "on a file", deployed=True), "", ("automation", "on a file", "")),
        (RunOrigin("USER", "ada", deployed=True), "please", ("person", "ada", "please")),
        (RunOrigin(deployed=True), "Run from the Prefect UI", ("person", "", "in the Prefect UI")),
        (RunOrigin(deployed=True), "", ("unknown", "", "")),
        (RunOrigin(deployed=True), "by hand", ("unknown", "", "by hand")),
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
        ([("Scheduled", "Retried via CLI (local execution)")], ("retry command", "", "")),
        ([("Scheduled", "somebody's script"), "Pending"], ("unknown", "", "somebody's script")),
        (["Pending"], ("unknown", "", "")),
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


def test_an_end_that_nobody_reported_is_unknown():
    found = passes_of(states("Running", "Pending", "Running", "Cancelling", "Cancelled"))
    assert [(one.ended, one.end, one.over, one.seconds) for one in found] == [
        (None, "", True, None),
        (AT + 4, "Cancelled", True, 2.0),
    ]
    assert borders(found) == [AT + 2]


def test_the_audit_log_says_more_than_the_state():
    def entry(**changes) -> AuditEntry:
        known = {
            "id": "e",
            "at": AT,
            "by": BY,
            "asked": "auto",
            "outcome": "rescheduled",
            "why": "its run crashed",
        }
        return AuditEntry(**{**known, **changes})

    named = ("Pending", "Running", "Crashed", RECOVERY, "Pending", "Running")
    mine = entry(state_id="s3", reason="its worker was killed", by="ada")
    assert starts(*named, audit=[entry(), mine])[1] == (
        "recovery",
        "ada",
        "its worker was killed; its run crashed",
    )
    # An automation's reason is what the hint begins with.
    same = entry(state_id="s3", reason="its run crashed", why="its run crashed; no external effect is done")
    assert starts(*named, audit=[same])[1][2] == "its run crashed; no external effect is done"
    others = [entry(by="ada"), entry(outcome="refused"), entry(state_id="another")]
    assert starts(*named, audit=others)[1] == ("recovery", BY, "its run crashed: the process is gone")


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
        assert one.end_type in {"", "SCHEDULED", *FINAL_TYPES}
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


@settings(deadline=None)
@given(ANY)
def test_the_numbers_that_task_runs_carry_are_known_where_the_api_counted_the_same(named):
    found = passes_of(states(*named))
    again = passes_of(states(*named), run_count=len(found))
    assert {one.count for one in found} <= {None}
    assert [one.count for one in again] == [one.number for one in again]
    assert {one.count for one in passes_of(states(*named), run_count=len(found) + 1)} <= {None}
