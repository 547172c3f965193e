"""`report`: the figures of a period, from the Prefect API and the store."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any, TypeVar

from prefect_resilience.durable.batches.audit import AUDITS, entries_of
from prefect_resilience.durable.effects.ledger import open_ledger
from prefect_resilience.durable.letters.edge.known import queue_of
from prefect_resilience.durable.letters.model import DeadLetter, first_id_at
from prefect_resilience.errors.exceptions import ConfigurationError, ResilienceError
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.guards.budgets.policy import get_budgets
from prefect_resilience.guards.circuits.fleet import get_circuits
from prefect_resilience.guards.circuits.model import CircuitSnapshot
from prefect_resilience.operations.reports import figures
from prefect_resilience.operations.reports.api import Api, Period, opened
from prefect_resilience.operations.reports.figures import (
    CircuitFigures,
    EffectFigures,
    FleetReport,
    LetterFigures,
)
from prefect_resilience.operations.reports.flow_runs import flow_figures
from prefect_resilience.operations.reports.happenings import Happenings, circuits_of, happenings_of
from prefect_resilience.operations.reports.task_runs import final_events, state_names, tally_of
from prefect_resilience.stores.base import scan_all

T = TypeVar("T")
When = datetime | timedelta | None

DAY = timedelta(days=1)
NAMED = 5
OLDER_READ = 10_000
"""Letters from before the period: one of them may have been replayed in it."""
LAST_ID = timedelta(seconds=1)
LATE = timedelta(seconds=30)
PATIENCE = 15.0
"""Seconds that the server may take to store the events of runs that have just ended."""

SOURCES = (
    "Task runs, retries, recoveries, fallbacks, replays and their durations: the task runs of the Prefect "
    "API that ended in the period, resilient or not, by their final state and run count.",
    "Attempts: the run counts of these task runs, without attempts that events report as rejected "
    "and starts that found a cached result or an effect that was done.",
    "Flow runs: the flow runs of the Prefect API that ended in the period. Crashes, failures and recoveries: "
    "their states; a crash that is reported twice counts once.",
    "Failed and rejected attempts, timeouts of attempts, effects in doubt, skipped dead letters: events of "
    "resilient tasks, which Prefect keeps for 7 days by default.",
    "Circuits: these events, and the latest state changes in the circuit's document in the store. An opening "
    "lasts until the next state, or until a probe was allowed.",
    "Dead letters, recoveries of batches, error budgets and the state of circuits: the store, without purged "
    "and pruned records. Error budgets show their current state.",
)
COUNTED = (
    "There were too many task runs to read each: the server counted those that ended Completed at their "
    "first attempt, and the events of most others. Tasks are known from the names of their runs."
)


def report(since: When = None, until: When = None) -> FleetReport:
    """Report retries, failures, fallbacks and recoveries of the fleet in a period, by default 24 hours.

    since, until: times (without an offset: in UTC), or how long ago. Works inside a flow run and outside.
    Raises ConfigurationError for an empty period, and ReportError if the Prefect API is unavailable. If a
    store is unavailable, its figures are unknown.

        print(report(timedelta(hours=8)).task_runs.retry_rate)
    """
    now = datetime.now(UTC)
    period = period_of(since, until, now)
    unknown: list[str] = []
    with opened() as api:
        names = state_names(api, period)
        events = _final_events(api, period, names, now)
        told = api.beside(lambda: _happenings(api, period, sum(names.values()), events, unknown))
        flows = api.beside(lambda: flow_figures(api, period, unknown))
        tally, read = tally_of(api, period, names, events)
        seen, (flow_runs, bad_ends) = told.result(), flows.result()
    for task, number in seen.refused.items() if seen else ():
        tally.refuse(task, number)
    total = tally.total()
    snapshots = _from_store("circuits", get_circuits, unknown)
    letters = _from_store("dead letters", lambda: _letters(period, seen, unknown), unknown)
    return FleetReport(
        since=period.since,
        until=period.until,
        made_at=now,
        task_runs=total,
        tasks=tally.tasks(),
        flow_runs=flow_runs,
        bad_ends=bad_ends,
        recovery_time=figures.spread_of(tally.recoveries),
        failed_attempts=seen.failed_attempts if seen else None,
        timeouts=seen.categories.get("timeout", 0) if seen else None,
        errors=figures.errors_of(seen.codes, total.attempts) if seen else None,
        categories=_sorted(seen.categories) if seen else None,
        circuits=_circuit_figures(seen, snapshots, period, unknown),
        dead_letters=letters,
        effects=EffectFigures(replayed=total.replayed, in_doubt=seen.in_doubt if seen else None),
        batches=_from_store("recoveries of batches", lambda: _batches(period), unknown),
        budgets=_from_store("error budgets", lambda: tuple(get_budgets()), unknown),
        unknown=tuple(unknown),
        sources=SOURCES if read else (*SOURCES, COUNTED),
    )


async def areport(since: When = None, until: When = None) -> FleetReport:
    """`report` from a coroutine; the event loop is not blocked."""
    return await asyncio.to_thread(report, since, until)


def period_of(since: When, until: When, now: datetime) -> Period:
    """The period of a report. It ends now at the latest."""
    end = min(_moment(until, now) or now, now)
    start = _moment(since, now) or end - DAY
    if start >= end:
        raise ConfigurationError(
            f"the report's period begins at {start.isoformat()} and ends at {end.isoformat()}: "
            "since must come before until, and both before now"
        )
    return Period(start, end)


def _moment(when: When, now: datetime) -> datetime | None:
    if isinstance(when, timedelta):
        return now - when
    if when is None:
        return None
    return when.astimezone(UTC) if when.tzinfo else when.replace(tzinfo=UTC)


# -- from the Prefect API


def _final_events(api: Api, period: Period, names: dict[str, int], now: datetime) -> int:
    """The number of final events of runs in the period. Waits a little for the latest events."""
    runs, known = sum(names.values()), final_events(api, period, names)
    waits_until = time.monotonic() + (PATIENCE if now - period.until < LATE else 0.0)
    while known < runs and time.monotonic() < waits_until:
        time.sleep(1.0)
        before, known = known, final_events(api, period, names)
        if known == before:
            waits_until -= PATIENCE / 5
    return known


def _happenings(api: Api, period: Period, runs: int, known: int, unknown: list[str]) -> Happenings | None:
    """Figures from events; None if there are runs but no events. Adds what is missing to `unknown`."""
    if known == 0 and runs > 0:
        unknown.append(
            "Failed attempts by code and category, rejected attempts, effects in doubt and skipped dead "
            "letters: the API has no events of this period; it keeps them for 7 days by default."
        )
        return None
    if known < runs:
        unknown.append(
            f"The API has events of {known} of {runs} task runs of this period: the numbers of failed and "
            "rejected attempts, effects in doubt and skipped dead letters are lower bounds."
        )
    return happenings_of(api, period)


def _circuit_figures(
    seen: Happenings | None, now: list[CircuitSnapshot] | None, period: Period, unknown: list[str]
) -> tuple[CircuitFigures, ...] | None:
    """Figures from events and documents; None if there are neither."""
    if seen is None and now is None:
        return None
    changes = seen.changes if seen else None
    every = changes is not None and now is not None
    since, until = period.since.timestamp(), period.until.timestamp()
    made = circuits_of(changes or [], now or [], since, until, every=every)
    missing = [one.name for one in made if not one.complete]
    if missing:
        names = ", ".join(missing[:NAMED]) + (
            f" and {len(missing) - NAMED} more" if len(missing) > NAMED else ""
        )
        unknown.append(
            f"Some changes of circuits ({names}): they have no event, and the store keeps only the latest "
            "changes. The openings of these circuits, and the time that they were open, are lower bounds."
        )
    return made


def _sorted(counts: dict[str, int]) -> dict[str, int]:
    return dict(sorted(counts.items(), key=lambda item: (-item[1], item[0])))


# -- from the store


def _from_store(what: str, read: Callable[[], T], unknown: list[str]) -> T | None:
    try:
        return read()
    except ResilienceError as error:
        unknown.append(f"{what[0].upper()}{what[1:]}: the store is unavailable ({redact(str(error))}).")
        return None


def _letters(period: Period, seen: Happenings | None, unknown: list[str]) -> LetterFigures:
    # An id has the time in whole milliseconds; the figures look at the exact one.
    before = first_id_at((period.until + LAST_ID).timestamp())
    read = _Letters(queue_of().letters(after=before), period.since)
    made = figures.letters_of(read, period.since, period.until)
    if read.more:
        unknown.append(
            f"Replays of older dead letters: the store has more than {OLDER_READ:,} letters from before the "
            "period, and only the newest of them were read. The numbers of replays are lower bounds."
        )
    return made.model_copy(update={"skipped": seen.skipped if seen else None})


@dataclass
class _Letters:
    """The letters since a time, and OLDER_READ older ones. `more`: there are still older ones."""

    letters: Iterator[DeadLetter]
    since: datetime
    more: bool = False

    def __iter__(self) -> Iterator[DeadLetter]:
        older = 0
        for letter in self.letters:
            older += letter.created_at < self.since
            if older > OLDER_READ:
                self.more = True
                return
            yield letter


def _batches(period: Period) -> dict[str, int]:
    """Recoveries in the period by outcome."""
    since, until = period.since.timestamp(), period.until.timestamp()
    counts: Counter[str] = Counter()
    for _, found in scan_all(open_ledger().store, AUDITS):
        document: dict[str, Any] = found.value
        counts.update(entry.outcome for entry in entries_of(document) if since <= entry.at < until)
    return _sorted(counts)
