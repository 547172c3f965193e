"""A report as headings, rows and sentences, from which each rendering is made. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timezone

from prefect_resilience.budgets.arithmetic import span_text
from prefect_resilience.errors.redact import redact
from prefect_resilience.payloads import fitted_text
from prefect_resilience.reports.model import FleetReport, RunFigures

UNKNOWN = "unknown"
NOTHING = "-"
MOST_ROWS = 50
LONGEST_NAME = 120

Row = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Section:
    """A table under a title. The first column holds names, the others figures; `says` stands below it."""

    title: str
    headings: Row
    rows: tuple[Row, ...] = ()
    says: str = ""


def headline(report: FleetReport) -> str:
    """The period and what became of it, in two sentences."""
    runs = report.task_runs
    return (
        f"{moment_text(report.since)} to {moment_text(report.until)}: {number(runs.runs, 'task run')}, "
        f"{runs.retried:,} retried, {runs.recovered:,} of them recovered. {runs.fallbacks:,} replaced, "
        f"{runs.failed + runs.crashed:,} failed."
    )


def sections_of(report: FleetReport) -> list[Section]:
    """Every part of the report that has something to say; what is unknown says so."""
    made = [_overview(report), _tasks(report), _errors(report), _circuits(report), _budgets(report)]
    return [section for section in made if section.rows or section.says]


def _overview(report: FleetReport) -> Section:
    runs, flows, letters = report.task_runs, report.flow_runs, report.dead_letters
    rows = [
        ("task runs", f"{runs.runs:,}"),
        ("attempts", f"{runs.attempts:,}"),
        ("retry rate", percent(runs.retry_rate)),
        ("failure rate", percent(runs.failure_rate)),
        ("recovery rate", percent(runs.recovery_rate)),
        ("attempts until success, on average", decimal(runs.attempts_until_success)),
        ("time to recovery", _recovery_time(report)),
        ("fallbacks", f"{runs.fallbacks:,}, {runs.degraded:,} of them degraded"),
        ("task runs that timed out", f"{runs.timed_out:,}"),
        ("failed attempts", count(report.failed_attempts)),
        ("attempts that timed out", count(report.timeouts)),
        ("task runs that crashed", f"{runs.crashed:,}"),
        ("task runs that were cancelled", f"{runs.cancelled:,}"),
        ("effects replayed", f"{report.effects.replayed:,}"),
        ("effects in doubt", count(report.effects.in_doubt)),
        ("recoveries of batches", _counts(report.batches)),
        ("flow runs", f"{flows.runs:,}, {flows.failed:,} failed, {flows.crashed:,} crashed"),
    ]
    if letters is None:
        rows.append(("dead letters", UNKNOWN))
    else:
        stand = f"{letters.created:,} came in: {letters.waiting:,} wait, {letters.replayed:,} are replayed"
        doubt = f", {letters.in_doubt:,} in doubt" if letters.in_doubt else ""
        ended = f"{letters.replays_succeeded:,} succeeded, {letters.replays_failed:,} failed"
        rows += [("dead letters", stand + doubt), ("replays of dead letters", ended)]
    return Section("Overview", ("", ""), tuple(rows))


def _recovery_time(report: FleetReport) -> str:
    spread = report.recovery_time
    if spread is None:
        return NOTHING
    return (
        f"{seconds(spread.median)} median, {seconds(spread.mean)} mean, {seconds(spread.p95)} p95, "
        f"{seconds(spread.longest)} longest"
    )


TASK_HEADINGS = (
    "task",
    "runs",
    "retried",
    "recovered",
    "attempts to success",
    "fallbacks",
    "timed out",
    "failed",
)


def _tasks(report: FleetReport) -> Section:
    rows = tuple((text_of(task.task), *_task_cells(task)) for task in report.tasks[:MOST_ROWS])
    return Section("Tasks", TASK_HEADINGS, rows, _more(len(report.tasks)))


def _task_cells(task: RunFigures) -> Iterable[str]:
    yield f"{task.runs:,}"
    yield f"{task.retried:,} ({percent(task.retry_rate)})"
    yield f"{task.recovered:,} ({percent(task.recovery_rate)})" if task.retried else NOTHING
    yield decimal(task.attempts_until_success)
    yield f"{task.fallbacks:,}" + (f" ({task.degraded:,} degraded)" if task.degraded else "")
    yield f"{task.timed_out:,}"
    yield f"{task.failed + task.crashed:,} ({percent(task.failure_rate)})"


def _errors(report: FleetReport) -> Section:
    if report.errors is None:
        return Section("Failed attempts by code", (), says=UNKNOWN)
    rows = tuple(
        (text_of(error.code), f"{error.attempts:,}", percent(error.rate))
        for error in report.errors[:MOST_ROWS]
    )
    headings = ("code", "attempts", "of all attempts")
    return Section("Failed attempts by code", headings, rows, _more(len(report.errors)))


def _circuits(report: FleetReport) -> Section:
    if report.circuits is None:
        return Section("Circuits", (), says=UNKNOWN)
    rows = tuple(
        (text_of(one.name), count(one.openings), seconds(one.seconds_open), one.state or NOTHING)
        for one in report.circuits[:MOST_ROWS]
    )
    headings = ("circuit", "openings", "time open", "now")
    return Section("Circuits", headings, rows, _more(len(report.circuits)))


def _budgets(report: FleetReport) -> Section:
    if report.budgets is None:
        return Section("Error budgets", (), says=UNKNOWN)
    rows = tuple(
        (
            text_of(one.name),
            f"{one.objective:.6g} in {span_text(one.window)}",
            f"{one.runs:,}, {one.bad:,} failed",
            percent(one.remaining),
            f"{max(one.burn_rates.values(), default=0.0):.1f}",
            text_of(one.why or "no"),
        )
        for one in report.budgets[:MOST_ROWS]
    )
    headings = ("budget", "objective", "runs", "remaining", "highest burn rate", "burns")
    return Section("Error budgets", headings, rows, _more(len(report.budgets)))


def _more(rows: int) -> str:
    return f"and {rows - MOST_ROWS:,} more" if rows > MOST_ROWS else ""


def _counts(counts: dict[str, int] | None) -> str:
    if counts is None:
        return UNKNOWN
    return ", ".join(f"{number:,} {name.replace('_', ' ')}" for name, number in counts.items()) or "0"


# -- words


def text_of(text: str) -> str:
    """A name on one line, bounded and without secrets: it may come from a service."""
    return fitted_text(" ".join(redact(text).split()), LONGEST_NAME)


def count(value: int | None) -> str:
    return UNKNOWN if value is None else f"{value:,}"


def percent(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.1%}"


def decimal(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.2f}"


def seconds(value: float | None) -> str:
    """A duration in the unit that suits it; None is unknown."""
    if value is None:
        return UNKNOWN
    for unit, size in (("d", 86_400), ("h", 3_600), ("min", 60)):
        if value >= 2 * size:
            return f"{value / size:.1f} {unit}"
    return f"{value:.1f} s" if value >= 0.1 or value == 0 else f"{value * 1000:.0f} ms"


def number(value: int, noun: str) -> str:
    return f"{value:,} {noun}" if value == 1 else f"{value:,} {noun}s"


def moment_text(moment: datetime) -> str:
    return f"{moment.astimezone(timezone.utc):%Y-%m-%d %H:%M:%S} UTC"
