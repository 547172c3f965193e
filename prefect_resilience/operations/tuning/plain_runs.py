"""The runs that no option changes while the circuit is closed, and what they add up to. Pure.

A plain run succeeded at once and quickly while the service was up. A replay passes over it without an event:
its figures are in the sums from the start. Only if the circuit is not closed when it begins, its figures are
taken out of them, and it is replayed like the others.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from prefect_resilience.operations.tuning.calls import ServiceCall, ServiceRecord
from prefect_resilience.operations.tuning.service import ServiceModel

RUNS, HIT, RECOVERED, FAILED, FALLBACK, SECONDS, WAITED, CALLS, DEAD = range(9)
Sums = list[float]

LIMIT_MARGIN = 120.0
"""Behind a limit, all runs so many seconds around a failure are replayed: retries may take the places."""


@dataclass(frozen=True, slots=True)
class PlainSuccesses:
    """The plain runs by their places: start, seconds, task, and the number of calls that each stands for.

    The items of the places of other runs mean nothing. longest: the most seconds of a plain run.
    """

    starts: Sequence[float]
    seconds: Sequence[float]
    tasks: Sequence[int]
    numbers: Sequence[int]
    longest: float

    def end(self, place: int) -> float:
        return self.starts[place] + self.seconds[place]


def is_plain(calls: Sequence[ServiceCall], state: int, least_timeout: float) -> bool:
    """Whether the calls of a run are one quick success. state: the outage in which it began, -1 for none."""
    if len(calls) != 1 or state != -1:
        return False
    [call] = calls
    return call.succeeded and call.nth == 0 and not call.waited_in_line and call.seconds < least_timeout


class LoadedMoments:
    """Moments at which runs that are plain elsewhere may meet a limit: of the service, or of their task.

    If load makes the service fail, that is any moment. A task's limit may be full where as many runs as it
    has places were at work, and soon after a failure.
    """

    def __init__(self, record: ServiceRecord, model: ServiceModel, places: Mapping[int, int]) -> None:
        self.everywhere: bool = model.limit is not None
        self._of_tasks: dict[int, list[float]] = {
            task: _full_moments(record, task, number) for task, number in places.items()
        }

    def meets(self, task: int, start: float, end: float) -> bool:
        """Whether a run from `start` to `end` may meet a limit."""
        if self.everywhere:
            return True
        moments = self._of_tasks.get(task)
        if moments is None:
            return False
        at = bisect_left(moments, start - LIMIT_MARGIN)
        return at < len(moments) and moments[at] <= end + LIMIT_MARGIN


def _full_moments(record: ServiceRecord, task: int, places: int) -> list[float]:
    """The moments at which all places of a task's limit were taken, and those of its failures."""
    moments: list[float] = []
    changes: list[tuple[float, int]] = []
    for calls in record.by_run:
        for call in calls:
            if call.task == task:
                changes += [(call.start, 1), (call.end, -1)]
                if not call.succeeded or call.waited_in_line:
                    moments += [call.start, call.end]
    at_work = 0
    for moment, change in sorted(changes):
        at_work += change
        if at_work >= places:
            moments.append(moment)
    return sorted(moments)


def passed_sums(
    runs: Iterable[tuple[int, int, float, float]], plain: Sequence[bool], tasks: int, blocks: int
) -> list[list[Sums]]:
    """By task and block the sums of the plain runs among `runs`: (task, block, seconds, weight)."""
    sums = [[[0.0] * 9 for _ in range(blocks)] for _ in range(tasks)]
    for (task, block, seconds, weight), passes in zip(runs, plain, strict=True):
        if passes:
            one = sums[task][block]
            one[RUNS] += weight
            one[CALLS] += weight
            one[SECONDS] += seconds * weight
    return sums


def at_returns(
    starts: Sequence[float], jumps: Sequence[int], ends: Iterable[float], spans: Iterable[float]
) -> dict[int, int]:
    """The places of the plain runs that begin soon after an outage, each with that outage.

    starts: of all runs, in order. jumps: as in `Scenario`. ends, spans: by outage, its end and the seconds
    after it that count.
    """
    return {
        place: outage
        for outage, (end, span) in enumerate(zip(ends, spans, strict=True))
        for place in range(bisect_left(starts, end), bisect_left(starts, end + span))
        if jumps[place] > place
    }
