"""`report`: the figures of a period, from the Prefect API and the store."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from itertools import chain, islice
from typing import TypeVar

from prefect_resilience.base.durations import moment_of
from prefect_resilience.base.text import sentence_of
from prefect_resilience.durable.batches.audit import AUDITS, entries_of
from prefect_resilience.durable.effects.ledger import open_ledger
from prefect_resilience.durable.letters.edge.known import queue_of
from prefect_resilience.durable.letters.queue import first_id_at
from prefect_resilience.errors.exceptions import ConfigurationError, ResilienceError
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.guards.budgets.policy import get_budgets
from prefect_resilience.guards.circuits.breaker import get_circuits
from prefect_resilience.operations.reports import figures
from prefect_resilience.operations.reports.api import Api, Filter, Period, opened, ours
from prefect_resilience.operations.reports.figures import (
    EffectFigures,
    FleetReport,
    LetterFigures,
    Tally,
    circuits_of,
)
from prefect_resilience.operations.reports.runs import (
    IDS,
    chunks,
    final_events,
    flow_figures,
    states_of,
    tally_of,
)
from prefect_resilience.stores.base import scan_all
from prefect_resilience.telemetry.edge.events import PREFIX

T = TypeVar("T")
When = datetime | timedelta | None

OLDER_READ = 10_000
"""Letters from before the period: one of them may have been replayed in it."""
OPENED, REFUSED = "circuit.opened", "attempt.refused"
EVENTS = "Failed and rejected attempts, and effects in doubt"


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
    with opened() as api, ThreadPoolExecutor(2) as beside:
        flows = beside.submit(flow_figures, api, period, unknown)
        states = states_of(api, period)
        runs, reported = states.total(), final_events(api, period, states)
        counts = beside.submit(EventFigures, api, period) if reported or not runs else None
        tally = tally_of(api, period, states, reported)
        events = counts.result() if counts else None
        if events is not None:
            _refuse(api, period, tally, events)
    if events is None:
        unknown.append(
            f"{EVENTS}: the API has no events of this period; it keeps them for 7 days by default."
        )
    elif reported < runs:
        unknown.append(
            f"{EVENTS} are lower bounds: the API has events of {reported} of {runs} task runs of this period."
        )
    total = tally.total()
    return FleetReport(
        since=period.since,
        until=period.until,
        task_runs=total,
        tasks=tally.tasks(),
        flow_runs=flows.result().model_copy(update={"parked": events.parked if events else None}),
        failed_attempts=events.codes.total() if events else None,
        errors=figures.errors_of(events.codes, total.attempts) if events else None,
        categories=dict(events.categories.most_common()) if events else None,
        circuits=_from_store("circuits", lambda: _circuits(events, period, unknown), unknown),
        dead_letters=_from_store("dead letters", lambda: _letters(period, unknown), unknown),
        effects=EffectFigures(replayed=total.replayed, in_doubt=events.in_doubt if events else None),
        batches=_from_store("recoveries of batches", lambda: _batches(period), unknown),
        budgets=_from_store("error budgets", lambda: tuple(get_budgets()), unknown),
        unknown=tuple(unknown),
    )


def period_of(since: When, until: When, now: datetime) -> Period:
    """The period of a report. It ends now at the latest."""
    end = now if until is None else min(moment_of(until, now), now)
    start = end - timedelta(days=1) if since is None else moment_of(since, now)
    if start >= end:
        raise ConfigurationError(
            f"the report's period begins at {start.isoformat()} and ends at {end.isoformat()}: "
            "since must come before until, and both before now"
        )
    return Period(start, end)


# -- events of this package


class EventFigures:
    """Counts of events. `rejected`: rejected attempts by task. `openings`: by circuit."""

    def __init__(self, api: Api, period: Period) -> None:
        self.codes: Counter[str] = Counter()
        self.categories: Counter[str] = Counter()
        for row in api.count_by("resource", period.events(ours("attempt.failed"))):
            category, _, code = row["value"].removeprefix(f"{PREFIX}.error.").partition(".")
            self.codes[code] += row["count"]
            self.categories[category] += row["count"]
        self.rejected: Counter[str] = _by_name(api, period.events(ours(REFUSED)))
        self.openings: Counter[str] = _by_name(api, period.events(ours(OPENED)))
        self.in_doubt: int = _by_name(api, period.events(ours("effect.in-doubt"))).total()
        self.parked: int = _by_name(api, period.events(ours("run.parked"))).total()


def _by_name(api: Api, about: Filter) -> Counter[str]:
    """The number of events by the name of their resource."""
    counts: Counter[str] = Counter()
    for row in api.count_by("resource", about):
        counts[row["label"]] += row["count"]
    return counts


def _refuse(api: Api, period: Period, tally: Tally, events: EventFigures) -> None:
    """Take rejected attempts out of the tally."""
    of_successes: Counter[str] = Counter()
    for ids in chunks(tally.retried_successes, IDS) if events.rejected else ():
        related = {"related": {"id": [f"prefect.task-run.{run_id}" for run_id in ids]}}
        of_successes += _by_name(api, {**period.events(ours(REFUSED)), **related})
    for task, number in events.rejected.items():
        tally.refuse(task, number, of_successes=of_successes[task])


def _circuits(
    events: EventFigures | None, period: Period, unknown: list[str]
) -> tuple[figures.CircuitFigures, ...]:
    openings = events.openings if events else Counter[str]()
    circuits = circuits_of(openings, get_circuits(), period.since.timestamp(), period.until.timestamp())
    if not all(circuit.complete for circuit in circuits):
        unknown.append(
            "Some changes of circuits: the store keeps only the latest. The openings and times of these "
            "circuits are lower bounds, marked `at least`."
        )
    return circuits


# -- from the store


def _from_store(name: str, read: Callable[[], T], unknown: list[str]) -> T | None:
    try:
        return read()
    except ResilienceError as error:
        unknown.append(f"{sentence_of(name)}: the store is unavailable ({redact(str(error))}).")
        return None


def _letters(period: Period, unknown: list[str]) -> LetterFigures:
    # An id has the time in whole milliseconds; the figures look at the exact one.
    before = first_id_at((period.until + timedelta(seconds=1)).timestamp())
    newer = queue_of().letters(since=period.since, after=before)
    older = queue_of().letters(after=first_id_at(period.since.timestamp()))
    letters = figures.letters_of(chain(newer, islice(older, OLDER_READ)), period.since, period.until)
    if next(older, None) is not None:
        unknown.append(
            f"Replays of older dead letters: the store has more than {OLDER_READ:,} letters from before the "
            "period, and only the newest of them were read. The numbers of replays are lower bounds."
        )
    return letters


def _batches(period: Period) -> dict[str, int]:
    """Recoveries in the period by outcome."""
    since, until = period.since.timestamp(), period.until.timestamp()
    counts: Counter[str] = Counter()
    for _, document in scan_all(open_ledger().store, AUDITS):
        counts.update(entry.outcome for entry in entries_of(document.value) if since <= entry.at < until)
    return dict(counts.most_common())
