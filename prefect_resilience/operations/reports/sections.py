"""A report as headings, rows and sentences, from which each rendering is made. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone

from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.guards.budgets.model import span_text
from prefect_resilience.operations.reports.figures import (
    BadEnd,
    CircuitFigures,
    FleetReport,
    FlowFigures,
    LetterFigures,
    RunFigures,
    Spread,
)
from prefect_resilience.telemetry.payloads import fitted_text

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
        f"{runs.retried:,} retried, {runs.recovered:,} of them recovered. {runs.fallbacks:,} answered by a "
        f"fallback, {runs.failed + runs.crashed:,} failed.{_flow_headline(report.flow_runs)}"
    )


def _flow_headline(flows: FlowFigures) -> str:
    if not flows.crashes and not flows.failures:
        return ""
    told = f"{flows.crashes:,} crashed, {flows.failures:,} failed, {count(flows.recovered)} recovered"
    return f" Flow runs: {told}."


def sections_of(report: FleetReport) -> list[Section]:
    """Every part of the report that has something to say; what is unknown says so."""
    made = [_overview(report), *(make(report) for make in (_bad_ends, _tasks, _errors, _circuits, _budgets))]
    return [section for section in made if section.rows or section.says]


def _overview(report: FleetReport) -> Section:
    runs = report.task_runs
    refused = UNKNOWN if report.failed_attempts is None else f"{runs.refused:,}"
    rows = [
        ("task runs", f"{runs.runs:,}"),
        ("attempts that were made", f"{runs.attempts:,}"),
        ("attempts that a circuit or a limit refused", refused),
        ("retry rate", percent(runs.retry_rate)),
        ("failure rate", percent(runs.failure_rate)),
        ("recovery rate", percent(runs.recovery_rate)),
        ("tries until success, on average", decimal(runs.attempts_until_success)),
        ("time to recovery", _spread_text(report.recovery_time)),
        ("fallbacks", f"{runs.fallbacks:,}, {runs.degraded:,} of them degraded"),
        ("task runs that timed out", f"{runs.timed_out:,}"),
        ("failed attempts", count(report.failed_attempts)),
        ("attempts that timed out", count(report.timeouts)),
        ("task runs that crashed", f"{runs.crashed:,}"),
        ("task runs that were cancelled", f"{runs.cancelled:,}"),
        ("effects replayed", f"{report.effects.replayed:,}"),
        ("effects in doubt", count(report.effects.in_doubt)),
        *_flow_rows(report.flow_runs),
        ("recoveries of batches", _counts(report.batches)),
        *_letter_rows(report.dead_letters),
    ]
    return Section("Overview", ("", ""), tuple(rows))


def _flow_rows(flows: FlowFigures) -> list[Row]:
    ended = [f"{flows.completed:,} completed", f"{flows.failed:,} failed", f"{flows.crashed:,} crashed"]
    ended += [f"{flows.cancelled:,} cancelled"] if flows.cancelled else []
    return [
        ("flow runs", f"{flows.runs:,} ended: {', '.join(ended)}"),
        ("crashes of flow runs", count(flows.crashes)),
        ("failures of flow runs", count(flows.failures)),
        ("flow runs that recovered", count(flows.recovered)),
        ("their time to recovery", NOTHING if not flows.recovered else _spread_text(flows.recovery_time)),
        ("time that flow runs stood failed or crashed", seconds(flows.seconds_in_error)),
    ]


def _letter_rows(letters: LetterFigures | None) -> list[Row]:
    if letters is None:
        return [("dead letters", UNKNOWN)]
    stand = f"{letters.created:,} came in: {letters.waiting:,} wait, {letters.replayed:,} are replayed"
    stand += _some((letters.settled, "settled by their runs"), (letters.in_doubt, "in doubt"))
    ended = f"{letters.replays_succeeded:,} succeeded, {letters.replays_failed:,} failed"
    ended += _some(
        (letters.replays_answered, "answered by a fallback"),
        (letters.replays_started, "begun as runs of deployments"),
        (letters.replays_not_made, "needed no call"),
        (letters.replays_in_doubt, "in doubt"),
    )
    rows = [("dead letters", stand), ("replays of dead letters", ended)]
    return [*rows, ("dead letters that replays left alone", count(letters.skipped))]


def _some(*counts: tuple[int, str]) -> str:
    return "".join(f", {number:,} {what}" for number, what in counts if number)


def _spread_text(spread: Spread | None) -> str:
    if spread is None:
        return NOTHING
    return (
        f"{seconds(spread.median)} median, {seconds(spread.mean)} mean, {seconds(spread.p95)} p95, "
        f"{seconds(spread.longest)} longest"
    )


def _bad_ends(report: FleetReport) -> Section:
    ends = report.bad_ends
    if ends is None:
        return Section(BAD_ENDS, (), says=UNKNOWN)
    rows = tuple((text_of(end.flow_run), *_end_cells(end)) for end in ends[:MOST_ROWS])
    headings = ("flow run", "ended", "at", "what came of it")
    return Section(BAD_ENDS, headings, rows, _more(len(ends)))


BAD_ENDS = "Flow runs that failed or crashed"


def _end_cells(end: BadEnd) -> Iterable[str]:
    yield text_of(end.state)
    yield moment_text(end.at)
    if end.again_at is None:
        yield "nothing"
        return
    after = f"ran again after {seconds((end.again_at - end.at).total_seconds())}"
    how = f" ({text_of(end.by)})" if end.by else ""
    took = "" if end.completed_at is None else _completed_after(end.completed_at - end.at)
    yield f"{after}{how}{took}"


def _completed_after(took: timedelta) -> str:
    return f", completed after {seconds(took.total_seconds())}"


TASK_HEADINGS = (
    "task",
    "runs",
    "retried",
    "recovered",
    "refused",
    "tries to success",
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
    yield f"{task.refused:,}" if task.refused else NOTHING
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
        (
            text_of(one.name),
            _least(one, count(one.openings)),
            _least(one, seconds(one.seconds_open)),
            _state(one),
        )
        for one in report.circuits[:MOST_ROWS]
    )
    headings = ("circuit", "openings", "time that it refused calls", "now")
    return Section("Circuits", headings, rows, _more(len(report.circuits)))


def _least(circuit: CircuitFigures, text: str) -> str:
    return text if circuit.complete else f"at least {text}"


def _state(circuit: CircuitFigures) -> str:
    return circuit.state.replace("_", " ") if circuit.state else NOTHING


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
