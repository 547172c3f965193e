"""Crashes, failures and recoveries of flow runs, from the states that they went through. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

from prefect_resilience.errors.info import bounded
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.operations.reports.figures import COMPLETED, CRASHED, FAILED, spread_of
from prefect_resilience.operations.reports.model import BadEnd, FlowFigures

BAD = (FAILED, CRASHED)
RUNNING = "RUNNING"
REPEATED = timedelta(seconds=30)
"""So long after a crash the same one may be reported again, over whatever state the run has by then."""

SAID = 200


@dataclass(frozen=True, slots=True)
class StateAt:
    """One state that a flow run came to."""

    type: str
    name: str
    at: datetime
    message: str = ""


def bad_ends_of(
    run_id: str, name: str, states: Iterable[StateAt], since: datetime, until: datetime
) -> list[BadEnd]:
    """Each time that a flow run ended badly before `until`, in their order, and what came of it by then."""
    seen = sorted((state for state in states if state.at < until), key=lambda state: state.at)
    begins = [place for place in range(len(seen)) if _ends_badly(seen, place)]
    ends = [*begins, len(seen)][1:]
    return [
        _bad_end(run_id, name, seen[begin], seen[begin + 1 : end], since, until)
        for begin, end in zip(begins, ends, strict=True)
    ]


def _ends_badly(states: Sequence[StateAt], place: int) -> bool:
    """Whether this is a bad end, and not the report of one that is known."""
    state = states[place]
    if state.type not in BAD:
        return False
    for earlier in reversed(states[:place]):
        if earlier.type == RUNNING:
            return True
        if earlier.type in BAD:
            directly = states[place - 1].type in BAD
            return not directly and state.at - earlier.at > REPEATED
    return True


def _bad_end(
    run_id: str,
    name: str,
    state: StateAt,
    after: Sequence[StateAt],
    since: datetime,
    until: datetime,
) -> BadEnd:
    again = next((one for one in after if one.type not in BAD), None)
    completed = next((one for one in after if one.type == COMPLETED), None)
    left = until if again is None else again.at
    return BadEnd(
        flow_run_id=run_id,
        flow_run=name,
        kind=state.type,
        state=state.name,
        at=state.at,
        again_at=None if again is None else again.at,
        by=None if again is None else bounded(redact(again.message), SAID) or None,
        completed_at=None if completed is None else completed.at,
        seconds=max(0.0, (left - max(state.at, since)).total_seconds()),
    )


def concerns(end: BadEnd, since: datetime) -> bool:
    """Whether a bad end, or what came of it, is in a period that begins then."""
    return any(at is not None and at >= since for at in (end.at, end.again_at, end.completed_at))


def with_bad_ends(figures: FlowFigures, runs: Iterable[Sequence[BadEnd]], since: datetime) -> FlowFigures:
    """The figures with what bad ends tell; `runs` are those of each flow run, in their order."""
    listed = [ends for ends in runs if ends]
    ends = [end for some in listed for end in some]
    recoveries = [_recovery(some) for some in listed]
    in_period = [seconds for at, seconds in filter(None, recoveries) if at >= since]
    return figures.model_copy(
        update={
            "crashes": sum(end.kind == CRASHED and end.at >= since for end in ends),
            "failures": sum(end.kind == FAILED and end.at >= since for end in ends),
            "recovered": len(in_period),
            "seconds_in_error": sum(end.seconds for end in ends),
            "recovery_time": spread_of(in_period),
        }
    )


def _recovery(ends: Sequence[BadEnd]) -> tuple[datetime, float] | None:
    """When a flow run completed after its bad ends, and how many seconds after the first of them."""
    completed = ends[-1].completed_at
    return None if completed is None else (completed, (completed - ends[0].at).total_seconds())
