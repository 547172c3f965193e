"""`report`: the figures of a period, from the Prefect API and the store."""

from __future__ import annotations

import asyncio
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import chain, islice
from typing import Any, TypeVar

from prefect_resilience.durable.batches.audit import AUDITS, entries_of
from prefect_resilience.durable.effects.ledger import open_ledger
from prefect_resilience.durable.letters.edge.known import queue_of
from prefect_resilience.durable.letters.model import first_id_at
from prefect_resilience.errors.exceptions import ConfigurationError, ResilienceError
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.guards.budgets.policy import get_budgets
from prefect_resilience.guards.circuits.fleet import get_circuits
from prefect_resilience.operations.reports import figures
from prefect_resilience.operations.reports.api import Api, Filter, Period, opened, ours
from prefect_resilience.operations.reports.figures import (
    CircuitFigures,
    EffectFigures,
    FleetReport,
    LetterFigures,
)
from prefect_resilience.operations.reports.flow_runs import flow_figures
from prefect_resilience.operations.reports.openings import StateChange, circuits_of
from prefect_resilience.operations.reports.task_runs import final_events, state_names, tally_of
from prefect_resilience.stores.base import scan_all
from prefect_resilience.telemetry.edge.events import PREFIX

T = TypeVar("T")
When = datetime | timedelta | None

DAY = timedelta(days=1)
OLDER_READ = 10_000
"""Letters from before the period: one of them may have been replayed in it."""
LAST_ID = timedelta(seconds=1)
LATE = timedelta(seconds=30)
PATIENCE = 4
"""How many seconds to wait for the events of runs that have just ended."""
MOST_CHANGES = 5_000
CIRCUITS = ("circuit.opened", "circuit.half-opened", "circuit.closed", "circuit.forced")
EVENTS = "Failed and rejected attempts, effects in doubt and skipped dead letters"


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
    with opened() as api, ThreadPoolExecutor(1) as beside:
        names = state_names(api, period)
        runs, known = sum(names.values()), _final_events(api, period, names, now)
        flows = beside.submit(flow_figures, api, period, unknown)
        events = None if runs and not known else EventFigures(api, period)
        tally = tally_of(api, period, names, known)
        flow_runs, bad_ends = flows.result()
    if events is None:
        unknown.append(
            f"{EVENTS}: the API has no events of this period; it keeps them for 7 days by default."
        )
    elif known < runs:
        unknown.append(
            f"{EVENTS} are lower bounds: the API has events of {known} of {runs} task runs of this period."
        )
    for task, number in events.rejected.items() if events else ():
        tally.refuse(task, number)
    total = tally.total()
    return FleetReport(
        since=period.since,
        until=period.until,
        made_at=now,
        task_runs=total,
        tasks=tally.tasks(),
        flow_runs=flow_runs,
        bad_ends=bad_ends,
        recovery_time=figures.spread_of(tally.recoveries),
        failed_attempts=events.codes.total() if events else None,
        timeouts=events.categories["timeout"] if events else None,
        errors=figures.errors_of(events.codes, total.attempts) if events else None,
        categories=figures.by_frequency(events.categories) if events else None,
        circuits=_circuits(events, period, unknown),
        dead_letters=_from_store("dead letters", lambda: _letters(events, period, unknown), unknown),
        effects=EffectFigures(replayed=total.replayed, in_doubt=events.in_doubt if events else None),
        batches=_from_store("recoveries of batches", lambda: _batches(period), unknown),
        budgets=_from_store("error budgets", lambda: tuple(get_budgets()), unknown),
        unknown=tuple(unknown),
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


# -- events of this package


class EventFigures:
    """Counts of events. `rejected`: rejected attempts by task. skipped: letters that replays skipped."""

    def __init__(self, api: Api, period: Period) -> None:
        def count(name: str) -> list[dict[str, Any]]:
            return api.count_by("resource", _about(period, name))

        self.codes: Counter[str] = Counter()
        self.categories: Counter[str] = Counter()
        self.rejected: Counter[str] = Counter()
        for row in count("attempt.failed"):
            category, _, code = row["value"].removeprefix(f"{PREFIX}.error.").partition(".")
            self.codes[code] += row["count"]
            self.categories[category] += row["count"]
        for row in count("attempt.refused"):
            self.rejected[row["label"]] += row["count"]
        self.in_doubt: int = sum(row["count"] for row in count("effect.in-doubt"))
        # A letter that is skipped several times counts once.
        self.skipped: int = len(count("dead-letter.skipped"))
        self.changes: dict[str, list[StateChange]] = {}
        for event in api.events(_about(period, *CIRCUITS), MOST_CHANGES)[0]:
            change = StateChange(*(event["payload"].get(name) for name in StateChange._fields))
            self.changes.setdefault(event["resource"]["prefect.resource.name"], []).append(change)


def _about(period: Period, *names: str) -> Filter:
    # By full names, for which the server has an index.
    return {"occurred": period.occurred(), "event": {"name": ours(*names)}}


def _final_events(api: Api, period: Period, names: dict[str, int], now: datetime) -> int:
    """The number of final events of runs in the period. Waits a little for the latest events."""
    for _ in range(PATIENCE if now - period.until < LATE else 0):
        if (known := final_events(api, period, names)) >= sum(names.values()):
            return known
        time.sleep(1.0)
    return final_events(api, period, names)


def _circuits(
    events: EventFigures | None, period: Period, unknown: list[str]
) -> tuple[CircuitFigures, ...] | None:
    """Figures from events and documents; None if there are neither."""
    documents = _from_store("circuits", get_circuits, unknown)
    if events is None and documents is None:
        return None
    changes = events.changes if events else {}
    circuits = circuits_of(changes, documents, period.since.timestamp(), period.until.timestamp())
    if not all(circuit.complete for circuit in circuits):
        unknown.append(
            "Some changes of circuits: they have no event, and the store keeps only the latest. The openings "
            "and times of these circuits are lower bounds, marked `at least`."
        )
    return circuits


# -- from the store


def _from_store(what: str, read: Callable[[], T], unknown: list[str]) -> T | None:
    try:
        return read()
    except ResilienceError as error:
        unknown.append(f"{what[0].upper()}{what[1:]}: the store is unavailable ({redact(str(error))}).")
        return None


def _letters(events: EventFigures | None, period: Period, unknown: list[str]) -> LetterFigures:
    # An id has the time in whole milliseconds; the figures look at the exact one.
    before = first_id_at((period.until + LAST_ID).timestamp())
    newer = queue_of().letters(period.since, after=before)
    older = queue_of().letters(after=first_id_at(period.since.timestamp()))
    letters = figures.letters_of(chain(newer, islice(older, OLDER_READ)), period.since, period.until)
    if next(older, None) is not None:
        unknown.append(
            f"Replays of older dead letters: the store has more than {OLDER_READ:,} letters from before the "
            "period, and only the newest of them were read. The numbers of replays are lower bounds."
        )
    return letters.model_copy(update={"skipped": events.skipped if events else None})


def _batches(period: Period) -> dict[str, int]:
    """Recoveries in the period by outcome."""
    since, until = period.since.timestamp(), period.until.timestamp()
    counts: Counter[str] = Counter()
    for _, document in scan_all(open_ledger().store, AUDITS):
        counts.update(entry.outcome for entry in entries_of(document.value) if since <= entry.at < until)
    return figures.by_frequency(counts)
