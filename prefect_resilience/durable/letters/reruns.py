"""Whether a letter's flow runs leave it to a replay, by what Prefect knows of them. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from typing import Literal

from prefect_resilience.durable.letters.model import DeadLetter, Pass

FINAL = ("COMPLETED", "FAILED", "CRASHED", "CANCELLED")

Made = Literal["yes", "unknown"]


@dataclass(frozen=True, slots=True)
class RunSeen:
    """A flow run as the API has it: `type` in capitals, `state` as the UI shows it."""

    id: str
    name: str
    type: str
    state: str
    run_count: int


@dataclass(frozen=True, slots=True)
class CallSeen:
    """A task run of a later pass as the API has it."""

    key: str
    completed: bool


def going_on(runs: Iterable[RunSeen]) -> str | None:
    """Why a replay has to leave the call to its run, in words; None when none of the runs goes on."""
    for run in runs:
        if run.type not in FINAL:
            return f"its flow run {run.name!r} is {run.state}: it may make the call itself"
    return None


def known_starts(letter: DeadLetter) -> dict[str, int]:
    """The latest start of each flow run that the letter knows a pass of."""
    latest = {letter.flow_run_id: letter.run_count} if letter.flow_run_id else dict[str, int]()
    for one in letter.passes:
        for run_id, count in one.starts:
            latest[run_id] = max(latest.get(run_id, 0), count)
    return latest


def completed_since(letter: DeadLetter, runs: Iterable[RunSeen]) -> list[RunSeen]:
    """The flow runs of a letter that were started again after it, and have completed."""
    latest = known_starts(letter)
    return [run for run in runs if run.type == "COMPLETED" and run.run_count > latest.get(run.id, 0)]


def cut_off_since(letter: DeadLetter, runs: Iterable[RunSeen]) -> list[RunSeen]:
    """Those that were started again and were cut off: they may have made calls that nobody told of."""
    latest = known_starts(letter)
    again = [run for run in runs if run.run_count > latest.get(run.id, 0)]
    return [run for run in again if run.type in ("CRASHED", "CANCELLED") or run.state == "TimedOut"]


def made_since(key: str, before: Iterable[CallSeen], after: Iterable[CallSeen]) -> Made:
    """Whether the call was made in a later pass, by the runs of its task there and in the pass that failed.

    Prefect keeps no parameters of them. It is certain only where all completed, and there are no fewer.
    """
    earlier, later = (
        [call for call in calls if _function(call.key) == _function(key)] for calls in (before, after)
    )
    return (
        "yes" if later and len(later) >= len(earlier) and all(one.completed for one in later) else "unknown"
    )


def _function(key: str) -> str:
    """A task's key without the digest of its code, which may have been mended."""
    return key.rpartition("-")[0] or key


def unclear(run: RunSeen) -> str:
    """Why a letter is left to a person whose run has ended since."""
    return (
        f"its flow run {run.name!r} was run again and is {run.state}, and nobody knows whether it made this "
        "call: look, then replay this letter by its id, with force"
    )


def later_pass(letter: DeadLetter, run: RunSeen, now: datetime) -> Pass:
    """The pass in which a run of the letter, started again, has made the call."""
    around = next((one.starts for one in reversed(letter.passes) if run.id in dict(one.starts)), ())
    ids = [run_id for run_id, _ in around]
    above = around[: ids.index(run.id)] if run.id in ids else ()
    return Pass(at=now, outcome="succeeded", starts=(*above, (run.id, run.run_count)))
