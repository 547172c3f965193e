"""The calls that reached one service, from the record of all tasks behind it. Pure."""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field, replace

from prefect_resilience.guards.circuits.model import DEFAULT_COUNTS
from prefect_resilience.operations.tuning.record import (
    RecordedAttempt,
    RecordedPeriod,
    RecordedRun,
    RecordedTask,
)

MASK = 2**64 - 1
MOST_OF_RUN = 1_000_000
AT_TIMEOUT = 0.98
"""An attempt that took this share of its timeout, and failed with `timeout`, was cut by it."""


@dataclass(frozen=True, slots=True)
class ServiceCall:
    """One attempt that reached the service. `nth`: its number among the attempts of its run, from 0.

    troubled: it failed with a category for which the service can be blamed. cut: the timeout ended it, so
    how long it would have taken is unknown. waited_in_line: a limit may have delayed it, so that `seconds`
    is more than the service took.
    """

    start: float
    seconds: float
    succeeded: bool
    category: str
    retry_after: float | None
    task: int
    run: int
    nth: int
    troubled: bool
    cut: bool = False
    waited_in_line: bool = False

    @property
    def end(self) -> float:
        return self.start + self.seconds

    @property
    def key(self) -> int:
        """A number that no other call of the record has. A set of them takes half the memory of pairs."""
        return self.run * MOST_OF_RUN + self.nth


@dataclass
class ServiceRecord:
    """All that the record has of one service: its tasks, their runs, and the calls by their start."""

    name: str
    tasks: list[RecordedTask] = field(default_factory=list[RecordedTask])
    runs: list[tuple[int, RecordedRun]] = field(default_factory=list[tuple[int, RecordedRun]])
    calls: list[ServiceCall] = field(default_factory=list[ServiceCall])
    by_run: list[list[ServiceCall]] = field(default_factory=list[list[ServiceCall]])
    rejected: int = 0


def service_of(task: RecordedTask) -> str:
    """The name of the service behind a task: its circuit's, or the task's own name without one.

    A template names one circuit for each of its values; the most frequent one stands for the task.
    """
    named: dict[str, int] = {}
    for run in task.runs:
        for attempt in run.attempts:
            if attempt.circuit is not None:
                named[attempt.circuit] = named.get(attempt.circuit, 0) + 1
    if named:
        return max(named, key=named.__getitem__)
    return task.circuit or task.name


def services_of(period: RecordedPeriod) -> list[ServiceRecord]:
    """The services of a period, each with all tasks that share its circuit."""
    records = tasks_by_service(period)
    for record in records:
        fill(record)
    return records


def tasks_by_service(period: RecordedPeriod) -> list[ServiceRecord]:
    """The services of a period with their tasks only; `fill` adds their runs and calls."""
    records: dict[str, ServiceRecord] = {}
    for task in period.tasks:
        if task.runs:
            name = service_of(task)
            records.setdefault(name, ServiceRecord(name)).tasks.append(task)
    return list(records.values())


def fill(record: ServiceRecord) -> None:
    """Add the runs and calls of the tasks of a service."""
    record.runs = sorted(
        ((number, run) for number, task in enumerate(record.tasks) for run in task.runs),
        key=lambda pair: pair[1].start,
    )
    timeouts = [_timeout_of(task) for task in record.tasks]
    for place, (number, run) in enumerate(record.runs):
        calls: list[ServiceCall] = []
        for nth, attempt in enumerate(run.attempts):
            if attempt.rejected_by is not None:
                record.rejected += 1
                continue
            category = "" if attempt.succeeded else attempt.category or "unexpected"
            timeout = timeouts[number]
            cut = category == "timeout" and timeout is not None and attempt.seconds >= AT_TIMEOUT * timeout
            calls.append(_call(attempt, category, number, place, nth, cut))
        record.by_run.append(calls)
    _mark_lines(record)
    record.calls = sorted((call for calls in record.by_run for call in calls), key=lambda call: call.start)


def _call(attempt: RecordedAttempt, category: str, task: int, run: int, nth: int, cut: bool) -> ServiceCall:
    return ServiceCall(
        start=attempt.start,
        seconds=attempt.seconds,
        succeeded=attempt.succeeded,
        category=category,
        retry_after=attempt.retry_after,
        task=task,
        run=run,
        nth=nth,
        troubled=category in DEFAULT_COUNTS,
        cut=cut,
    )


def _mark_lines(record: ServiceRecord) -> None:
    """Mark the calls that may have waited for a place of a limit: all places were taken when they began."""
    for number, task in enumerate(record.tasks):
        places = places_of(task)
        if places is None:
            continue
        calls = sorted(
            ((call, at) for calls in record.by_run for at, call in enumerate(calls) if call.task == number),
            key=lambda pair: pair[0].start,
        )
        ends: list[float] = []
        for call, at in calls:
            del ends[: bisect_left(ends, call.start)]
            if len(ends) >= places:
                record.by_run[call.run][at] = replace(call, waited_in_line=True)
            insort(ends, call.end)


def places_of(task: RecordedTask) -> int | None:
    """The places of a task's bulkhead, if it is known."""
    limits = (task.options or {}).get("limits")
    places = limits.get("max_concurrent") if isinstance(limits, dict) else None  # pyright: ignore
    return places if isinstance(places, int) else None


def _timeout_of(task: RecordedTask) -> float | None:
    written = (task.options or {}).get("timeout")
    return float(written) if isinstance(written, int | float) else None


def shares(values: Iterable[str]) -> tuple[tuple[str, float], ...]:
    """Each value with its share, the most frequent first."""
    counts: dict[str, int] = {}
    for value in values:
        counts[value] = counts.get(value, 0) + 1
    total = sum(counts.values())
    ordered = sorted(counts.items(), key=lambda pair: (-pair[1], pair[0]))
    return tuple((value, number / total) for value, number in ordered)


def quantile(ordered: Sequence[float], share: float) -> float:
    """The value below which `share` of the ordered values lies, between two of them by a straight line."""
    place = share * (len(ordered) - 1)
    below = int(place)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (ordered[above] - ordered[below]) * (place - below)


def chance_of(*numbers: int) -> float:
    """In [0, 1): the same for the same numbers, and even for different ones (a mix like that of
    splitmix64)."""
    mixed = 0x9E3779B97F4A7C15
    for number in numbers:
        mixed = (mixed ^ (number + 0x9E3779B97F4A7C15 + (mixed << 6) + (mixed >> 2))) & MASK
        mixed = ((mixed ^ (mixed >> 30)) * 0xBF58476D1CE4E5B9) & MASK
        mixed = ((mixed ^ (mixed >> 27)) * 0x94D049BB133111EB) & MASK
        mixed ^= mixed >> 31
    return (mixed >> 11) / 2.0**53
