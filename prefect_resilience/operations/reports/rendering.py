"""A report as headings, rows and sentences; as markdown, for an artifact; and as one page of HTML. Pure."""

from __future__ import annotations

import base64
import html
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import TypeVar

from jinja2 import Environment, FileSystemLoader, select_autoescape

from prefect_resilience.base.text import lasting, one_line, plural, utc_text
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.guards.budgets.model import BudgetStatus, span_text
from prefect_resilience.operations.reports.figures import (
    BadEnd,
    CircuitFigures,
    ErrorFigures,
    FleetReport,
    FlowFigures,
    LetterFigures,
    Spread,
    TaskFigures,
)
from prefect_resilience.telemetry.payloads import fitted_text

TITLE = "Fleet report"
UNKNOWN = "unknown"
NOTHING = "-"
MOST_ROWS = 50
LONGEST_NAME = 120

RECOVERIES = {"told": "needs a person", "nothing": "needs no recovery", "refused": "not changed"}
"""Words for outcomes of recoveries that do not speak for themselves."""

Row = tuple[str, ...]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Section:
    """A table with a title. The first column has names, the others figures. `says`: a text below it."""

    title: str
    headings: Row
    rows: tuple[Row, ...] = ()
    says: str = ""


def headline(report: FleetReport) -> str:
    """The period and its main figures, in two or three sentences."""
    runs = report.task_runs
    return (
        f"{utc_text(report.since)} to {utc_text(report.until)}: {plural(runs.runs, 'task run')}, "
        f"{runs.retried:,} retried, {runs.recovered:,} of them recovered. {runs.fallbacks:,} answered by a "
        f"fallback, {runs.failed + runs.crashed:,} failed.{_flow_headline(report.flow_runs)}"
    )


def _flow_headline(flows: FlowFigures) -> str:
    if not flows.crashes and not flows.failures:
        return ""
    crashes, failures = plural(flows.crashes or 0, "crash", "crashes"), plural(flows.failures or 0, "failure")
    return f" Flow runs: {crashes}, {failures}, {count(flows.recovered)} recovered."


def sections_of(report: FleetReport) -> list[Section]:
    """Every part of the report that has rows; unknown parts say so."""
    tasks = ("task", "runs", "retried", "recovered", "rejected", "attempts to success", "fallbacks")
    bad_ends = ("flow run", "ended", "at", "recovery")
    circuits = ("circuit", "openings", "time rejecting calls", "now")
    budgets = ("budget", "objective", "runs", "remaining", "highest burn rate", "burns")
    made = [
        _overview(report),
        _table("Flow runs that failed or crashed", bad_ends, report.bad_ends, _bad_end),
        _table("Tasks", (*tasks, "timed out", "failed"), report.tasks, _task),
        _table("Failed attempts by code", ("code", "attempts", "of all attempts"), report.errors, _error),
        _table("Circuits", circuits, report.circuits, _circuit),
        _table("Error budgets", budgets, report.budgets, _budget),
    ]
    return [section for section in made if section.rows or section.says]


def _table(
    title: str, headings: Row, found: Sequence[T] | None, cells: Callable[[T], Iterable[str]]
) -> Section:
    if found is None:
        return Section(title, (), says=UNKNOWN)
    rows = tuple(tuple(cells(one)) for one in found[:MOST_ROWS])
    more = len(found) - MOST_ROWS
    return Section(title, headings, rows, f"and {more:,} more" if more > 0 else "")


def _overview(report: FleetReport) -> Section:
    runs = report.task_runs
    refused = UNKNOWN if report.failed_attempts is None else f"{runs.refused:,}"
    rows = [
        ("task runs", f"{runs.runs:,}"),
        ("attempts", f"{runs.attempts:,}"),
        ("attempts rejected by a circuit or a limit", refused),
        ("retry rate", percent(runs.retry_rate)),
        ("failure rate", percent(runs.failure_rate)),
        ("recovery rate", percent(runs.recovery_rate)),
        ("attempts until success, on average", decimal(runs.attempts_until_success)),
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
        ("final states of flow runs", f"{flows.runs:,} ended: {', '.join(ended)}"),
        ("crashes of flow runs (events in the period)", count(flows.crashes)),
        ("failures of flow runs (events in the period)", count(flows.failures)),
        ("flow runs that recovered", count(flows.recovered)),
        (
            "time to recovery of flow runs",
            NOTHING if not flows.recovered else _spread_text(flows.recovery_time),
        ),
        ("time that flow runs were failed or crashed", seconds(flows.seconds_in_error)),
    ]


def _letter_rows(letters: LetterFigures | None) -> list[Row]:
    if letters is None:
        return [("dead letters", UNKNOWN)]
    stand = f"{letters.created:,} created and in the store now: {letters.waiting:,} waiting"
    stand += f", {letters.replayed:,} replayed"
    stand += _some((letters.settled, "settled by their runs"), (letters.in_doubt, "in doubt"))
    ended = f"{letters.replays_succeeded:,} succeeded, {letters.replays_failed:,} failed"
    ended += _some(
        (letters.replays_answered, "answered by a fallback"),
        (letters.replays_started, "started as runs of deployments"),
        (letters.replays_not_made, "needed no call"),
        (letters.replays_in_doubt, "in doubt"),
    )
    rows = [("dead letters", stand), ("replays of dead letters", ended)]
    return [*rows, ("dead letters skipped by replays", count(letters.skipped))]


def _some(*counts: tuple[int, str]) -> str:
    return "".join(f", {number:,} {what}" for number, what in counts if number)


def _spread_text(spread: Spread | None) -> str:
    if spread is None:
        return NOTHING
    return (
        f"{seconds(spread.median)} median, {seconds(spread.mean)} mean, {seconds(spread.p95)} p95, "
        f"{seconds(spread.longest)} longest"
    )


def _bad_end(end: BadEnd) -> Iterable[str]:
    yield text_of(end.flow_run)
    yield text_of(end.state)
    yield utc_text(end.at)
    if end.again_at is None:
        yield "none"
        return
    how = f" ({text_of(end.by)})" if end.by else ""
    completed = "" if end.completed_at is None else f", completed after {_between(end.at, end.completed_at)}"
    yield f"ran again after {_between(end.at, end.again_at)}{how}{completed}"


def _between(begin: datetime, end: datetime) -> str:
    return seconds((end - begin).total_seconds())


def _task(task: TaskFigures) -> Iterable[str]:
    yield text_of(task.task)
    yield f"{task.runs:,}"
    yield f"{task.retried:,} ({percent(task.retry_rate)})"
    yield f"{task.recovered:,} ({percent(task.recovery_rate)})" if task.retried else NOTHING
    yield f"{task.refused:,}" if task.refused else NOTHING
    yield decimal(task.attempts_until_success)
    yield f"{task.fallbacks:,}" + (f" ({task.degraded:,} degraded)" if task.degraded else "")
    yield f"{task.timed_out:,}"
    yield f"{task.failed + task.crashed:,} ({percent(task.failure_rate)})"


def _error(error: ErrorFigures) -> Iterable[str]:
    return text_of(error.code), f"{error.attempts:,}", percent(error.rate)


def _circuit(one: CircuitFigures) -> Iterable[str]:
    least = "" if one.complete else "at least "
    yield text_of(one.name)
    yield f"{least}{count(one.openings)}"
    yield f"{least}{seconds(one.seconds_open)}"
    yield one.state.replace("_", " ") if one.state else NOTHING


def _budget(one: BudgetStatus) -> Iterable[str]:
    yield text_of(one.name)
    yield f"{one.objective:.6g} in {span_text(one.window)}"
    yield f"{one.runs:,}, {one.bad:,} failed"
    yield percent(one.remaining)
    yield f"{max(one.burn_rates.values(), default=0.0):.1f}"
    yield text_of(one.why or "no")


def _counts(counts: dict[str, int] | None) -> str:
    if counts is None:
        return UNKNOWN
    named = ((number, RECOVERIES.get(name, name.replace("_", " "))) for name, number in counts.items())
    return ", ".join(f"{number:,} {name}" for number, name in named) or "0"


# -- words


def text_of(text: str) -> str:
    """A name on one line, shortened and redacted: it may come from a service."""
    return fitted_text(one_line(redact(text)), LONGEST_NAME)


def count(value: int | None) -> str:
    return UNKNOWN if value is None else f"{value:,}"


def percent(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.1%}"


def decimal(value: float | None) -> str:
    return NOTHING if value is None else f"{value:.2f}"


def seconds(value: float | None) -> str:
    """A duration in a fitting unit; "unknown" for None."""
    return UNKNOWN if value is None else lasting(value)


# -- as markdown and HTML, by the templates beside this file

# Colours of Okabe and Ito, chosen for the colour-blind; each bar has its number as text, too.
BLUE, ORANGE, VERMILION = "#0072B2", "#E69F00", "#D55E00"
BARS = 10

Bar = tuple[str, float, str]
"""A label, a value, and the text of the value."""


def markdown_of(report: FleetReport) -> str:
    """Markdown with its charts as images."""
    return _rendered("report.md", report)


def html_of(report: FleetReport) -> str:
    """One page with its charts in it."""
    return _rendered("report.html", report)


def _rendered(template: str, report: FleetReport) -> str:
    return _templates.get_template(template).render(
        title=TITLE,
        headline=headline(report),
        report=report,
        charts=list(_charts(report)),
        sections=sections_of(report),
        made_at=utc_text(report.made_at),
    )


def _charts(report: FleetReport) -> Iterator[tuple[str, str]]:
    """Titles and SVG documents: retries by task, errors by code, the time that circuits were open."""
    tasks = sorted(report.tasks, key=lambda one: -(one.retry_rate or 0))
    retried = [(one.task, one.retry_rate or 0, percent(one.retry_rate)) for one in tasks]
    errors = [(one.code, one.attempts, f"{one.attempts:,}") for one in report.errors or ()]
    opened = [(one.name, one.seconds_open, seconds(one.seconds_open)) for one in report.circuits or ()]
    charts: dict[str, tuple[str, Sequence[Bar]]] = {
        "Retry rate by task": (BLUE, retried),
        "Failed attempts by code": (VERMILION, errors),
        "Time that circuits rejected calls": (ORANGE, opened),
    }
    for title, (colour, bars) in charts.items():
        shown = [(_drawable(label), value, text) for label, value, text in bars if value > 0][:BARS]
        if shown:
            longest = max(value for _, value, _ in shown)
            chart = _templates.get_template("chart.svg")
            yield title, chart.render(title=title, colour=colour, bars=shown, longest=longest)


def _drawable(name: str) -> str:
    """A name without control characters, which XML does not allow."""
    letters = (letter if letter.isprintable() else "\N{REPLACEMENT CHARACTER}" for letter in text_of(name))
    return "".join(letters)


def _cell(text: str) -> str:
    """Text that is neither markdown nor HTML, and does not end a cell."""
    safe = html.escape(text, quote=False)
    for letter in "\\`*_[]|~#!":
        safe = safe.replace(letter, f"\\{letter}" if letter != "|" else "&#124;")
    return safe


def _base64(text: str) -> str:
    return base64.b64encode(text.encode()).decode()


_templates = Environment(
    loader=FileSystemLoader(Path(__file__).with_name("templates")),
    autoescape=select_autoescape(("html", "svg")),
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
_templates.filters.update(cell=_cell, base64=_base64)
