"""The calls that reached one service, as arrays, and the outages in them. Pure.

An outage is a run of failures that is longer than chance allows. Each first call of a run, and each retry
that succeeded, is a piece of evidence: a failure speaks for an outage by log(SHARE / usual), a success
against it. (Further failures of a run say little: the same run may fail whatever the service does.) Where the
sum of the evidence is more than a record of that length has by chance in 1 of 100, there was an outage.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from itertools import groupby, pairwise

import numpy as np
import numpy.typing as npt

from prefect_resilience.guards.circuits.model import DEFAULT_COUNTS
from prefect_resilience.operations.tuning.record import RecordedPeriod, RecordedRun, RecordedTask

Floats = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
Ints = npt.NDArray[np.int64]

REPLAYED = frozenset({"succeeded", "fallback", "failed"})
"""The ends of runs that are replayed; a crash or a cancellation has nothing to do with the policy."""

SHARE, FALSE_ALARMS = 0.5, 0.01
UP = -1


@dataclass(frozen=True, slots=True)
class ServiceOutage:
    """The first failed call was at `start`. The end is somewhere from `low` (the last failed call) to `high`
    (the first success after it); `ended`: there was one."""

    start: float
    low: float
    high: float
    ended: bool


@dataclass
class ServiceCalls:
    """What the record has of one service: its tasks, their runs by their start, and the calls of those runs.

    By run: began, task_of, weight_of; at_once: the seconds of a run that succeeded at once while the service
        was up, else nan; calls_of: the places of its calls in the arrays of calls.
    By call: start, seconds, failed; task, weight; troubled: the service can be blamed for the failure;
        outage: the place of the outage in which it began, or UP.
    first: by task, the first calls of runs while the service was up. retries: by number of failures before
        them, the retries of runs that never met an outage.
    """

    tasks: list[RecordedTask]
    runs: list[tuple[int, RecordedRun]]
    began: Floats
    task_of: Ints
    weight_of: Floats
    calls_of: list[range]
    start: Floats
    seconds: Floats
    failed: Bools
    troubled: Bools
    task: Ints
    weight: Floats
    categories: list[str]
    retry_after: list[float | None]
    at_once: Floats = field(default_factory=lambda: np.empty(0))
    outages: list[ServiceOutage] = field(default_factory=list[ServiceOutage])
    outage: Ints = field(default_factory=lambda: np.empty(0, np.int64))
    first: list[list[int]] = field(default_factory=list[list[int]])
    retries: dict[int, list[int]] = field(default_factory=dict[int, list[int]])

    def successes(self, task: int) -> Floats:
        """The seconds of a task's successes while the service was up."""
        return self.seconds[(self.task == task) & ~self.failed & (self.outage == UP)]


def services_of(period: RecordedPeriod) -> Iterator[ServiceCalls]:
    """The services of a period, each with all tasks that share its circuit."""
    tasks = sorted((task for task in period.tasks if task.runs), key=lambda task: task.service)
    for _, group in groupby(tasks, key=lambda task: task.service):
        yield calls_of(list(group), period.until)


def calls_of(tasks: list[RecordedTask], until: float) -> ServiceCalls:
    """The calls of the tasks behind one service, with its outages."""
    runs = [
        (task, run)
        for task, record in enumerate(tasks)
        for run in record.runs
        if run.attempts and run.ended in REPLAYED
    ]
    runs.sort(key=lambda pair: pair[1].attempts[0].start)
    reached = [[attempt for attempt in run.attempts if not attempt.rejected] for _, run in runs]
    numbers = list(map(len, reached))
    calls = [call for some in reached for call in some]
    categories = ["" if call.succeeded else call.category or "unexpected" for call in calls]
    task_of = np.array([task for task, _ in runs], np.int64)
    weight_of = np.array([run.weight for _, run in runs], float)
    service = ServiceCalls(
        tasks=tasks,
        runs=runs,
        began=np.array([run.attempts[0].start for _, run in runs], float),
        task_of=task_of,
        weight_of=weight_of,
        calls_of=[range(begin, end) for begin, end in pairwise(np.cumsum([0, *numbers]).tolist())],
        start=np.array([call.start for call in calls], float),
        seconds=np.array([call.seconds for call in calls], float),
        failed=np.array([not call.succeeded for call in calls], bool),
        troubled=np.array([category in DEFAULT_COUNTS for category in categories], bool),
        task=np.repeat(task_of, numbers),
        weight=np.repeat(weight_of, numbers),
        categories=categories,
        retry_after=[call.retry_after for call in calls],
    )
    service.outages = list(_outages(service, until))
    service.outage = np.full(len(calls), UP)
    service.at_once = np.array([run.attempts[0].seconds if is_plain(run) else np.nan for _, run in runs])
    for place, outage in enumerate(service.outages):
        service.outage[(service.start >= outage.start) & (service.start <= outage.low)] = place
        service.at_once[(service.began >= outage.start) & (service.began <= outage.high)] = np.nan
    _fill_pools(service)
    return service


def is_plain(run: RecordedRun) -> bool:
    """Whether it succeeded at once."""
    return len(run.attempts) == 1 and run.attempts[0].succeeded


def _outages(service: ServiceCalls, until: float) -> Iterator[ServiceOutage]:
    order = np.argsort(service.start, kind="stable")
    firsts = np.zeros(len(order), bool)
    firsts[[calls[0] for calls in service.calls_of if calls]] = True
    order = order[(firsts | ~service.troubled)[order]]
    start, failed = service.start[order], service.troubled[order]
    all_failed = np.sort(service.start[service.troubled])
    for begin, end in _runs_of_failures(failed):
        good = np.flatnonzero(~failed[end + 1 :])
        high = float(start[end + 1 + good[0]]) if len(good) else until
        low = float(all_failed[np.searchsorted(all_failed, high) - 1])
        yield ServiceOutage(float(start[begin]), min(low, high), high, len(good) > 0)


def _runs_of_failures(failed: Bools) -> list[tuple[int, int]]:
    """The first and the last failure of each run of failures that is longer than chance allows."""
    usual, stretches = 0.02, list[tuple[int, int]]()
    for _ in range(4):
        usual = min(SHARE / 2, max(usual, 1 / (len(failed) + 1)))
        stretches = list(_scan(failed, usual))
        inside = np.zeros(len(failed), bool)
        for begin, end in stretches:
            inside[begin : end + 1] = True
        usual = (failed[~inside].sum() + 1) / (len(failed) - inside.sum() + 2)
    return stretches


def _scan(failed: Bools, usual: float) -> Iterator[tuple[int, int]]:
    """A sum of the evidence that never falls below 0 (Page's CUSUM); where it rises high enough is a run."""
    needed = np.log(max(1, len(failed)) / FALSE_ALARMS)
    bad, good = np.log(SHARE / usual), np.log((1 - SHARE) / (1 - usual))
    total = best = 0.0
    begin = end = last = 0
    for place in (*np.flatnonzero(failed).tolist(), len(failed)):
        total += good * (place - last - 1)
        if total <= 0 or place == len(failed) or (best >= needed and total <= best - needed / 2):
            if best >= needed:
                yield begin, end
            total, best, begin = 0.0, 0.0, place
        total, last = total + bad, place
        if total > best:
            best, end = total, place


def _fill_pools(service: ServiceCalls) -> None:
    service.first = [[] for _ in service.tasks]
    for (task, _), calls in zip(service.runs, service.calls_of, strict=True):
        for failures, call in enumerate(calls):
            if service.outage[call] != UP:
                break
            if failures:
                service.retries.setdefault(failures, []).append(call)
            else:
                service.first[task].append(call)
