"""The passes of a flow run, read from its states: when each began, how it ended, what started it.

A pass begins with a RUNNING state and ends with the next final or scheduled state. A pause in which the
process waits is part of its pass. A crash that a worker reports a second time belongs to no pass. Pure; times
are seconds since the epoch.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from itertools import pairwise
from typing import Literal

from prefect_resilience.durable.batches.parked import PARKED
from prefect_resilience.telemetry.model import FINAL, StateSeen

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

RECOVERED = "Recovered by {by}: {why}"
"""The message of the state by which a recovery reschedules a run."""
_RECOVERED = re.compile(r"""Recovered by ((?:'[^']*'|"[^"]*"|[^:'"])+): (.*)""", re.DOTALL)
SKEW = 5.0
"""The most seconds by which the clocks of a worker and of the server may differ."""
_WAITING = frozenset({"Late", "AwaitingConcurrencySlot"})
"""States of a scheduled run that waits for a worker."""


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


def passes_of(
    states: Iterable[StateSeen],
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
    passes: list[RunPass] = []
    between: list[StateSeen] = []
    is_paused = False
    for state in sorted(states, key=lambda state: state.at):
        latest = passes[-1] if passes else None
        goes_on = latest is not None and latest.ended is None
        if state.type != "RUNNING":
            between.append(state)
            if goes_on and state.type in FINAL | {"SCHEDULED"}:
                end = {"ended": state.at, "end": state.name, "end_type": state.type, "message": state.message}
                passes[-1] = replace(passes[-1], **end)
        elif not (goes_on and is_paused):
            start = _first(between, origin or RunOrigin()) if latest is None else _again(between, latest)
            passes.append(RunPass(len(passes) + 1, state.at, start))
            between = []
        is_paused = state.type == "PAUSED"
    number = len(passes)
    return tuple(
        replace(
            run_pass,
            over=run_pass.ended is not None or run_pass.number < number,
            count=run_pass.number if run_count == number else None,
        )
        for run_pass in passes
    )


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


def _first(states: Sequence[StateSeen], origin: RunOrigin) -> Start:
    """What started a run, by its first states, and by what Prefect recorded at its creation."""
    message = next((state.message for state in states if state.message), "")
    at = states[0].at if states else None
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


def _again(states: Sequence[StateSeen], before: RunPass) -> Start:
    """What started a later pass: the last state that scheduled it, and who set that state."""
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
    if latest.name == "AwaitingRetry" and latest.at == before.ended:
        # A flow that retries itself goes on in its process; a run that a worker gives back waits for another.
        pending = any(state.type == "PENDING" for state in states if state.at >= latest.at)
        return Start("worker" if pending else "flow retry", "", message, latest.at)
    return Start("unknown", "", message, latest.at)
