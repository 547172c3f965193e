"""Reads the record of a period from the Prefect API and the store, in bounded time and memory.

Runs with failures are read from their final events, and each event has all attempts of its run. Of the runs
that succeeded at once a sample is read if they are many: pages at random places of each part of the period,
and more of tasks with few of them. What was read is kept (see `kept`), and the next call reads what is new.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from random import Random

from prefect_resilience.operations.reports.api import PAGE, Api, Filter, Period, opened, ours
from prefect_resilience.operations.reports.reading import When, period_of
from prefect_resilience.operations.reports.stems import UNSAFE, pattern_of
from prefect_resilience.operations.reports.task_runs import ended_in, moment, runs_by_id
from prefect_resilience.operations.tuning.evidence import (
    ENDS,
    KnownOptions,
    NamedRun,
    SeenRows,
    TaskNames,
    circuits_of_record,
    is_plain,
    run_of_event,
    seen_in,
    tasks_of,
)
from prefect_resilience.operations.tuning.kept import Evidence, keep, kept_evidence
from prefect_resilience.operations.tuning.reading_options import openings_of, options_of
from prefect_resilience.operations.tuning.record import RecordedPeriod
from prefect_resilience.telemetry.edge.events import PREFIX

MOST_TROUBLED = 20_000
"""Runs with failures that are read in a call; of more, those in a random part of each hour."""

MOST_PLAIN = 10_000
"""Rows of task runs that are read in a call. Twice as many runs without failures are kept."""

SLICE = 4_000
EVENTS_AT_ONCE = 600
FEW, TOPPED_UP = 200, 20
"""For this many tasks with fewer runs in the sample than FEW, more are read."""

SETTLED = timedelta(minutes=2)
"""What is newer is read again by the next call: an event reaches the server after its run has ended."""

OVERLAP = timedelta(seconds=10)
WEEK = timedelta(days=7)
HOUR = timedelta(hours=1)
MOST_HOURS = 900
"""The API counts events in at most 1000 parts of a period."""


def read_evidence(since: When = None, until: When = None) -> RecordedPeriod:
    """The record of a period, by default of the last 7 days.

    Raises ConfigurationError for an empty period and ReportError if the Prefect API is unavailable. What is
    missing, or only a sample, is in `unknown`.
    """
    now = datetime.now(UTC)
    period = period_of(WEEK if since is None else since, until, now)
    with opened() as api:
        return _read(api, period, now)


def _read(api: Api, period: Period, now: datetime) -> RecordedPeriod:
    unknown: dict[str, str] = {}
    options = options_of(api, period, unknown)
    since, until = period.since.timestamp(), period.until.timestamp()
    evidence = _evidence(api, period, options, now).within(since, until)
    runs = evidence.named()
    _say(evidence, runs, unknown)
    return RecordedPeriod(
        since=since,
        until=until,
        tasks=tasks_of(runs, options),
        circuits=circuits_of_record(openings_of(api, period, unknown), options),
        runs=api.count("task_runs", ended_in(period)),
        read=len(runs),
        unknown=unknown,
    )


def _say(evidence: Evidence, runs: list[NamedRun], unknown: dict[str, str]) -> None:
    """Add what of the runs is missing or a sample."""
    plain = [one.run for one in runs if is_plain(one.run)]
    if any(run.weight > 1 for run in plain):
        unknown["successes"] = (
            f"Of the runs that succeeded at once a random sample of {len(plain)} was read; each has a weight."
        )
    if evidence.untold:
        share = evidence.untold / evidence.troubled
        unknown["attempts"] = (
            f"The attempts of about {share:.0%} of the runs with retries or failures are not known: the API "
            "has no event of them. It keeps events for 7 days, and older versions sent no attempts."
        )
    if evidence.sampled:
        unknown["failures"] = (
            f"There were {evidence.sampled} runs with retries or failures: those in a random part of each "
            "hour were read; each has a weight."
        )


# -- what is kept, and what is new


def _evidence(api: Api, period: Period, options: list[KnownOptions], now: datetime) -> Evidence:
    """The evidence of the period and perhaps more; reads what is not kept yet."""
    kept = kept_evidence(api.address)
    if kept is not None and not (kept.since <= period.since.timestamp() and _still_there(api, kept)):
        kept = None
    random = Random(period.since.timestamp())
    settled = min(period.until, now - SETTLED).timestamp()
    if kept is not None and _is_too_thin(api, kept, period):
        return _new(api, period, options, random, settled)
    if kept is None:
        found = _new(api, period, options, random, settled)
    else:
        begin = datetime.fromtimestamp(kept.until, UTC)
        if begin >= period.until:
            return kept
        found = kept.joined(_new(api, Period(begin, period.until), options, random, settled))
    found = found.bounded(2 * MOST_PLAIN, random)
    if settled > found.since:
        keep(api.address, found.within(found.since, settled))
    return found


def _is_too_thin(api: Api, kept: Evidence, period: Period) -> bool:
    """Whether what is kept of a short period is a much smaller sample than a new one would be."""
    since, until = period.since.timestamp(), min(period.until.timestamp(), kept.until)
    weights = [one.run.weight for one in kept.within(since, until).named() if is_plain(one.run)]
    if len(weights) >= MOST_PLAIN / 2 or not weights:
        return False
    total = api.count("task_runs", ended_in(period))
    return sum(weights) / len(weights) > 2 * max(1.0, total / MOST_PLAIN)


def _still_there(api: Api, kept: Evidence) -> bool:
    """Whether the server still has the latest run that was kept: it may be a new server at this address."""
    runs = kept.named()
    if not runs:
        return True
    latest = max(runs, key=lambda one: one.run.end)
    return any(True for _ in runs_by_id(api, [latest.run.run_id]))


def _new(api: Api, period: Period, options: list[KnownOptions], random: Random, settled: float) -> Evidence:
    troubled, sampled = _troubled(api, period, random)
    names = TaskNames.of(options, {one.task for one in troubled})
    seen = _rows(api, period, names, random)
    told = {one.run.run_id for one in troubled}
    settled_ones = [run_id for run_id, end in seen.troubled.items() if end < settled]
    # With a sample of the events, it is not known which are missing.
    untold = 0 if sampled else sum(run_id not in told for run_id in settled_ones)
    return Evidence.of(
        period.since.timestamp(),
        period.until.timestamp(),
        [*troubled, *(one for one in seen.runs if one.run.run_id not in told)],
        troubled=len(settled_ones),
        untold=untold,
        sampled=sampled,
    )


# -- runs with failures, from their final events


def _final(period: Period) -> Filter:
    return {"occurred": period.occurred(), "event": {"name": ours(*ENDS)}}


def _troubled(api: Api, period: Period, random: Random) -> tuple[list[NamedRun], int]:
    """The runs with failures, and their number if they are only a sample."""
    period = Period(period.since - OVERLAP, period.until)
    hours = list(_hours(api, period))
    total = sum(count for _, count in hours)
    share = min(1.0, MOST_TROUBLED / total) if total else 1.0
    found: dict[str, NamedRun] = {}
    parts = [part for hour, count in hours for part in _parts(hour, count, share, random)]
    for part in api.each(lambda part: _runs_of_part(api, part), parts):
        for one in part:
            found[one.run.run_id] = one if share == 1 else _weighing(one, 1 / share)
    return [*found.values()], 0 if share == 1 else total


def _hours(api: Api, period: Period) -> Iterator[tuple[Period, int]]:
    """The parts of the period with final events, and their numbers."""
    hours = max(1.0, (period.until - period.since) / HOUR / MOST_HOURS)
    body = {"filter": _final(period), "time_unit": "hour", "time_interval": hours}
    for row in api.post("/events/count-by/time", body):
        start, end = moment(row["start_time"]), moment(row["end_time"])
        if row["count"] and start is not None and end is not None:
            last = end + timedelta(microseconds=1)
            yield Period(max(start, period.since), min(last, period.until)), row["count"]


def _parts(hour: Period, count: int, share: float, random: Random) -> Iterator[Period]:
    """The hour in parts of about EVENTS_AT_ONCE events, of each the `share` at a random place."""
    for part in hour.parts(max(1, count // EVENTS_AT_ONCE)):
        length = part.until - part.since
        begin = part.since + length * (1 - share) * random.random()
        yield part if share == 1 else Period(begin, begin + length * share)


def _runs_of_part(api: Api, part: Period) -> list[NamedRun]:
    events, _ = api.events(_final(part), MOST_TROUBLED)
    made = (run_of_event(event, event["event"].removeprefix(f"{PREFIX}.")) for event in events)
    return [one for one in made if one is not None]


def _weighing(one: NamedRun, weight: float) -> NamedRun:
    return NamedRun(one.task, replace(one.run, weight=weight))


# -- runs without failures, from rows


def _rows(api: Api, period: Period, names: TaskNames, random: Random) -> SeenRows:
    """What the rows of the period show, or a sample of them."""
    total = api.count("task_runs", ended_in(period))
    seen: dict[str, NamedRun] = {}
    troubled: dict[str, float] = {}
    share = min(1.0, MOST_PLAIN / max(1, total))
    for part in period.parts(max(1, -(-total // SLICE))) if names.names else ():
        for one in _sampled(api, ended_in(part), names, share, random):
            seen.update((run.run.run_id, run) for run in one.runs)
            troubled |= one.troubled
    if share < 1:
        _top_up(api, period, names, seen, random)
    return SeenRows([*seen.values()], troubled)


def _sampled(api: Api, filters: Filter, names: TaskNames, share: float, random: Random) -> Iterator[SeenRows]:
    """Pages of the rows, chosen at random. The weights are the same in all of them."""
    total = api.count("task_runs", filters)
    offsets = range(0, total, PAGE)
    some = max(1, round(len(offsets) * share))
    chosen = offsets if share == 1 else sorted(random.sample(offsets, min(some, len(offsets))))
    pages = list(api.each(lambda offset: api.page(filters, offset), chosen))
    read = sum(map(len, pages))
    for page in pages:
        yield seen_in(page, names, total / read)


def _top_up(api: Api, period: Period, names: TaskNames, seen: dict[str, NamedRun], random: Random) -> None:
    """Replace the few runs of a task in the sample by a larger sample of that task alone."""
    counts = Counter(one.task for one in seen.values())
    rare = sorted(
        (counts[task], task) for task in names.names if counts[task] < FEW and not UNSAFE.search(task)
    )
    for _, task in rare[:TOPPED_UP]:
        filters = {**ended_in(period), "name": {"like_": pattern_of(task)}}
        total = api.count("task_runs", filters)
        if not total:
            continue
        share = min(1.0, 2 * PAGE / total)
        # The pattern also matches longer names, and others: rows that are not of this task count for nothing.
        found = [
            one
            for page in _sampled(api, filters, names, share, random)
            for one in page.runs
            if one.task == task
        ]
        if len(found) <= counts[task]:
            continue
        for run_id in [run_id for run_id, one in seen.items() if one.task == task]:
            del seen[run_id]
        seen.update((one.run.run_id, one) for one in found)
