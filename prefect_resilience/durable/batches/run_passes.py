"""The passes of a flow run, read from its states: when each began, how it ended, what started it.

A pass begins with a RUNNING state and ends with the next final or scheduled state. A pause in which the
process waits is part of its pass. A crash that a worker reports a second time belongs to no pass. Pure; times
are seconds since the epoch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

from prefect_resilience.base.text import utc_text
from prefect_resilience.durable.batches.parked import PARKED

Cause = Literal[
    "schedule",
    "automation",
    "recovery",
    "flow retry",
    "parked",
    "retry button",
    "retry command",
    "worker",
    "resumed",
    "person",
    "program",
    "parent",
    "unknown",
]

FINAL_TYPES = frozenset({"COMPLETED", "FAILED", "CRASHED", "CANCELLED"})
RECOVERED = "Recovered by {by}: {why}"
"""The message of the state by which a recovery reschedules a run."""
_RECOVERED = re.compile(r"""Recovered by ((?:'[^']*'|"[^"]*"|[^:'"])+): (.*)""", re.DOTALL)
_WAITING = frozenset({"Late", "AwaitingConcurrencySlot"})
"""States of a scheduled run that waits for a worker."""


@dataclass(frozen=True, slots=True)
class RunState:
    """One state of a flow run. `type` is Prefect's, in capitals."""

    type: str
    name: str
    at: float
    message: str = ""
    id: str = ""


@dataclass(frozen=True, slots=True)
class RunOrigin:
    """How a flow run was created, by the API. `creator` is the creator's name in the UI.

    `creator_kind`: SCHEDULE, AUTOMATION, USER, ... as Prefect writes it; may be empty.
    """

    creator_kind: str = ""
    creator: str = ""
    scheduled: bool = False
    deployed: bool = False
    inner: bool = False


@dataclass(frozen=True, slots=True)
class Start:
    """What started a pass: the kind, who did it (empty if unknown), and why (empty if unknown)."""

    cause: Cause
    who: str = ""
    why: str = ""
    at: float | None = None


@dataclass(frozen=True, slots=True)
class RunPass:
    """One pass. `ended` is None while it goes on, and if its end was never reported.

    `end` is the name of its last state, `end_type` the type. `over`: whether it has certainly ended. `count`:
    the `flow_run_run_count` of its task runs, if known.
    """

    number: int
    began: float
    start: Start
    ended: float | None = None
    end: str = ""
    end_type: str = ""
    message: str = ""
    over: bool = False
    count: int | None = None

    @property
    def seconds(self) -> float | None:
        """How long it took."""
        return None if self.ended is None else max(self.ended - self.began, 0.0)

    @property
    def crashed(self) -> bool:
        """Whether it was reported as crashed, or a person recovered it by force: its process is gone."""
        return self.end_type == "CRASHED" or _RECOVERED.match(self.message) is not None


@dataclass(slots=True)
class _Going:
    """A pass while its states are read."""

    began: RunState
    before: tuple[RunState, ...]
    end: RunState | None = None


def passes_of(
    states: Iterable[RunState],
    origin: RunOrigin | None = None,
    run_count: int | None = None,
) -> tuple[RunPass, ...]:
    """The passes of a flow run, the first one first; none before it has begun.

    Args:
        states: All states of the flow run, in any order.
        origin: How it was created, which tells who started the first pass.
        run_count: How often it began, by the API. If that agrees with the states, each pass has the `count`
            of its task runs.
    """
    read = _read(sorted(states, key=lambda state: state.at))
    passes: list[RunPass] = []
    for number, going in enumerate(read, start=1):
        end = going.end or RunState("", "", 0.0)
        start = _first(going, origin or RunOrigin())
        if number > 1:
            start = _again(going, read[number - 2])
        passes.append(
            RunPass(
                number=number,
                began=going.began.at,
                start=start,
                ended=None if going.end is None else end.at,
                end=end.name,
                end_type=end.type,
                message=end.message,
                over=going.end is not None or number < len(read),
                count=number if run_count == len(read) else None,
            )
        )
    return tuple(passes)


def pass_of_task_run(passes: Sequence[RunPass], count: int, at: float) -> RunPass | None:
    """The pass of a task run: by its `count`, else by time. None without passes.

    `count` is its `flow_run_run_count`, which is 0 before it has begun; `at` is when it was created. Between
    two passes, the nearer one counts: the clocks of worker and server may differ.
    """
    for run_pass in passes:
        if count and run_pass.count == count:
            return run_pass
    if not passes:
        return None
    for run_pass, until in zip(passes, borders(passes), strict=False):
        if at < until:
            return run_pass
    return passes[-1]


def borders(passes: Sequence[RunPass]) -> list[float]:
    """For each pass but the last, the middle between its end and the next pass."""
    return [
        (min(before.ended, after.began) + after.began) / 2 if before.ended is not None else after.began
        for before, after in pairwise(passes)
    ]


def _read(states: Sequence[RunState]) -> list[_Going]:
    passes: list[_Going] = []
    waiting: list[RunState] = []
    for place, state in enumerate(states):
        current = passes[-1] if passes else None
        if state.type == "RUNNING":
            paused = place > 0 and states[place - 1].type == "PAUSED"
            if current is not None and current.end is None and paused:
                continue
            passes.append(_Going(state, tuple(waiting)))
            waiting = []
            continue
        waiting.append(state)
        if current is not None and current.end is None and state.type in FINAL_TYPES | {"SCHEDULED"}:
            current.end = state
    return passes


def _first(going: _Going, origin: RunOrigin) -> Start:
    """What started a run, by what Prefect recorded at its creation."""
    message = next((state.message for state in going.before if state.message), "")
    at = going.before[0].at if going.before else None
    if origin.inner:
        return Start("parent", at=at)
    if origin.creator_kind == "SCHEDULE" or origin.scheduled:
        return Start("schedule", origin.creator, at=at)
    if origin.creator_kind == "AUTOMATION":
        return Start("automation", origin.creator, at=at)
    if origin.creator:
        return Start("person", origin.creator, message, at)
    if "Prefect UI" in message:
        return Start("person", "", "in the Prefect UI", at)
    if not origin.deployed:
        return Start("program", at=at)
    return Start("unknown", "", message, at)


def _again(going: _Going, before: _Going) -> Start:
    """What started a later pass: the last state that scheduled it, and who set that state."""
    states = going.before
    scheduled = [state for state in states if state.type == "SCHEDULED" and state.name not in _WAITING]
    if not scheduled:
        return Start("unknown", at=states[-1].at if states else None)
    latest = scheduled[-1]
    if recovered := _RECOVERED.match(latest.message):
        by, why = recovered.groups()
        return Start("recovery", by, why, latest.at)
    message = latest.message
    if message.startswith("Retry from the UI"):
        return Start("retry button", at=latest.at)
    if message.startswith("Retried via CLI"):
        return Start("retry command", at=latest.at)
    if latest.name == PARKED:
        return Start("parked", "", message, latest.at)
    if latest.name == "Resuming":
        return Start("resumed", "", message, latest.at)
    if latest.name == "AwaitingRetry" and latest is before.end:
        # A flow that retries itself goes on in its process; a run that a worker gives back waits for another.
        pending = any(state.type == "PENDING" for state in states if state.at >= latest.at)
        return Start("worker" if pending else "flow retry", "", message, latest.at)
    return Start("unknown", "", message, latest.at)


# Task runs that a killed process left Running or Pending, and that nothing will ever finish.
#
# The process of a task run reports its states to the Prefect API, some seconds late. A killed process reports
# nothing. The functions below decide which task runs to close as Crashed. In doubt, a task run is left as it
# is.

UNFINISHED = ("RUNNING", "PENDING", "SCHEDULED")
"""Types of states that only the task run's own process can end."""

SETTLES = 10.0
"""The end of a pass and the state of its task run must be at least this old, in seconds: by then all reports
of the process have arrived."""

SKEW = 5.0
"""The most seconds by which the clocks of a worker and of the server may differ."""

LONG = 3_600.0
"""Seconds without a change after which a task run is closed although it moved after the end of its pass."""


@dataclass(frozen=True, slots=True)
class UnfinishedRun:
    """A task run without a final state. `since` is when it entered its current state.

    `count` is its `flow_run_run_count`. `elsewhere`: it does not run in the process of its flow run: it
    waits for a task worker, or represents a subflow run.
    """

    id: str
    type: str
    state: str
    since: float
    count: int = 0
    elsewhere: bool = False


def left_behind(
    runs: Iterable[UnfinishedRun],
    passes: Sequence[RunPass],
    now: float,
    *,
    only_crashed: bool = False,
    settles: float = SETTLES,
) -> dict[str, str]:
    """The ids of the task runs that no process works on any more, each with the message of its new state.

    Args:
        runs: Unfinished task runs of one flow run.
        passes: The passes of that flow run.
        now: The time.
        only_crashed: Leave those of passes that ended without a crash: their process may still live.
        settles: The seconds without a change after which a task run is closed.
    """
    lost: dict[str, str] = {}
    for run in runs:
        run_pass = pass_of_task_run(passes, run.count, run.since)
        if run.elsewhere or run.type not in UNFINISHED or run_pass is None:
            continue
        if (run_pass.crashed or not only_crashed) and _is_over(run_pass, run, now, settles):
            lost[run.id] = _message(run, run_pass)
    return lost


def _is_over(one: RunPass, run: UnfinishedRun, now: float, settles: float) -> bool:
    if not one.over:
        return False
    if one.ended is None:  # another pass has begun since, and the end of this one was never reported
        return now - run.since >= settles and run.count > 0
    if run.since > one.ended + SKEW:  # its state changed after the end: a process of that pass lived
        return now - run.since >= max(LONG, settles)
    return now - max(one.ended, run.since) >= settles


def _message(run: UnfinishedRun, one: RunPass) -> str:
    how = "which has an unknown end"
    if one.ended is not None:
        how = f"which ended {one.end} at {utc_text(one.ended)}"
    was = f"It was {run.state} since {utc_text(run.since)}."
    return f"Unfinished after pass {one.number} of its flow run, {how}. {was}"
