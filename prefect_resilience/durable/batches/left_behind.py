"""Which task runs of a flow run a process left behind: unfinished, and nobody will ever finish them.

The process that runs a task run moves it through its states, and the Prefect API hears of that some seconds
later. A killed process tells nothing any more, so its task runs stay Running and Pending for ever. This file
decides which of them are to be closed as Crashed. In doubt a task run is left as it is: a later look may know
more. Pure; times are seconds since the epoch.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timezone
from itertools import zip_longest

from prefect_resilience.durable.batches.run_passes import RunPass, pass_of_task_run

UNFINISHED = ("RUNNING", "PENDING", "SCHEDULED")
"""Types of states in which nothing moves a task run but its own process."""

SETTLES = 10.0
"""So old, in seconds, the end of a pass and the state of its task run are at least: what the process had told
by then has arrived."""

SKEW = 5.0
"""So far apart, in seconds, the clocks of a worker and of the server may be."""

LONG = 3_600.0
"""Seconds without a change after which a task run is closed although it moved after the end of its pass."""


@dataclass(frozen=True, slots=True)
class UnfinishedRun:
    """A task run without a final state. `since` is when it came to the state that the API knows.

    `count` is its `flow_run_run_count`. `elsewhere`: it does not depend on the process of its flow run, as it
    waits for a task worker, or stands for a flow run inside.
    """

    id: str
    name: str
    type: str
    state: str
    since: float
    count: int = 0
    elsewhere: bool = False


@dataclass(frozen=True, slots=True)
class LeftBehind:
    """A task run to be called crashed, and what its state is to say."""

    run: UnfinishedRun
    message: str


def left_behind(
    runs: Iterable[UnfinishedRun],
    passes: Sequence[RunPass],
    now: float,
    *,
    heartbeats: Iterable[float] = (),
    only_crashed: bool = False,
    settles: float = SETTLES,
) -> list[LeftBehind]:
    """Those that no process is at any more.

    Args:
        runs: Unfinished task runs of one flow run.
        passes: The passes of that flow run.
        now: The time.
        heartbeats: When the flow run gave a sign of life. One after the end of a pass is of a process that
            lives although it was called crashed: its task runs are left.
        only_crashed: Leave those of passes that ended in order: their process may still be there.
        settles: For how many seconds nothing may have moved.
    """
    found: list[LeftBehind] = []
    alive = _alive(passes, heartbeats)
    for run in runs:
        if run.elsewhere or run.type not in UNFINISHED:
            continue
        one = pass_of_task_run(passes, run.count, run.since)
        if one is None or one.number in alive or (only_crashed and not one.crashed):
            continue
        if not _is_over(one, run, now, settles):
            continue
        found.append(LeftBehind(run, _message(run, one)))
    return found


def _is_over(one: RunPass, run: UnfinishedRun, now: float, settles: float) -> bool:
    if not one.over:
        return False
    if one.ended is None:  # another pass has begun since, so that nobody reported how this one ended
        return now - run.since >= settles and run.count > 0
    if run.since > one.ended + SKEW:  # it moved on after the end: something of that pass lived
        return now - run.since >= max(LONG, settles)
    return now - max(one.ended, run.since) >= settles


def _alive(passes: Sequence[RunPass], heartbeats: Iterable[float]) -> set[int]:
    """The passes that gave a sign of life after their end, and before another one could be meant."""
    beats = [*heartbeats]
    found: set[int] = set()
    for one, after in zip_longest(passes, passes[1:]):
        until = float("inf") if after is None else after.began - SKEW
        if one.ended is not None and any(one.ended + SKEW < beat < until for beat in beats):
            found.add(one.number)
    return found


def _message(run: UnfinishedRun, one: RunPass) -> str:
    was = f"{run.state} since {_utc(run.since)}"
    if one.ended is None:
        return f"Left behind by pass {one.number} of its flow run, whose end nobody reported. It was {was}."
    how = f"ended {one.end} at {_utc(one.ended)}"
    return f"Left behind by pass {one.number} of its flow run, which {how}. It was {was}."


def _utc(at: float) -> str:
    return f"{datetime.fromtimestamp(at, timezone.utc):%Y-%m-%d %H:%M:%S} UTC"
