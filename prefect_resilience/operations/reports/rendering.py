"""A report as headings, rows and sentences; as markdown, for an artifact; and as one page of HTML. Pure."""

from __future__ import annotations

import html
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, cast

from jinja2 import Environment, FileSystemLoader, select_autoescape
from pydantic import BaseModel

from prefect_resilience.base.text import lasting, plural, printable, utc_text
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.operations.reports.figures import CircuitFigures, FleetReport
from prefect_resilience.telemetry.payloads import fit_text

TITLE = "Fleet report"
UNKNOWN, NOTHING = "unknown", "-"
MOST_ROWS = 50
LONGEST_NAME = 120

TABLES = {
    "Tasks": (
        "tasks",
        "task,runs,retried,retry_rate,recovered,refused,fallbacks,timed_out,failed,crashed",
    ),
    "Failed attempts by code": ("errors", "code,attempts,rate"),
    "Circuits": ("circuits", "name,openings,seconds_open,state"),
    "Error budgets": ("budgets", "name,objective,runs,bad,remaining,burn_rates,why"),
}
"""The tables of a report: the field that has their rows, and the fields that are their columns."""

TOTALS = ("task_runs", "effects", "flow_runs", "dead_letters")
"""The fields whose figures are the rows of the overview."""

WORDS = {
    "bad": "failed",
    "other": "without an attempt",
    "rate": "of all attempts",
    "refused": "rejected",
    "recovery_time": "median time to recovery",
    "seconds_in_error": "time in error",
    "seconds_open": "time rejecting calls",
    "why": "burns",
    # Outcomes of recoveries.
    "nothing": "needs no recovery",
    "told": "needs a person",
}
"""Words for fields whose names do not speak for themselves."""

Row = tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Section:
    """A table with a title. The first column has names, the others figures. `says`: a text below it."""

    title: str
    headings: Row
    rows: tuple[Row, ...] = ()
    says: str = ""


def headline(report: FleetReport) -> str:
    """The period and its main figures, in two or three sentences."""
    runs, flows = report.task_runs, report.flow_runs
    crashes, failures = flows.crashes or 0, flows.failures or 0
    ends = f"{plural(crashes, 'crash', 'crashes')}, {plural(failures, 'failure')}"
    recovered = UNKNOWN if flows.recovered is None else f"{flows.recovered:,}"
    return (
        f"{utc_text(report.since)} to {utc_text(report.until)}: {plural(runs.runs, 'task run')}, "
        f"{runs.retried:,} retried, {runs.recovered:,} of them recovered. {runs.fallbacks:,} answered by a "
        f"fallback, {runs.failed + runs.crashed:,} failed."
        + (f" Flow runs: {ends}, {recovered} recovered." if crashes or failures else "")
    )


def sections_of(report: FleetReport) -> list[Section]:
    """Every part of the report that has rows; unknown parts say so."""
    sections = [Section("Overview", ("", ""), tuple(_overview(report)))]
    for title, (field, names) in TABLES.items():
        items = cast("Sequence[BaseModel] | None", getattr(report, field))
        if items is None:
            sections.append(Section(title, (), says=UNKNOWN))
        elif items:
            columns = names.split(",")
            rows = tuple(tuple(_cells(item, columns)) for item in items[:MOST_ROWS])
            more = f"and {len(items) - MOST_ROWS:,} more" if len(items) > MOST_ROWS else ""
            sections.append(Section(title, tuple(map(_words, columns)), rows, more))
    return sections


def _overview(report: FleetReport) -> Iterator[Row]:
    for field in ("failed_attempts", "categories", "batches"):
        yield _words(field), _text(field, getattr(report, field), UNKNOWN)
    for total in TOTALS:
        figures = cast("BaseModel | None", getattr(report, total))
        if figures is None:
            yield _words(total), UNKNOWN
            continue
        names = [*type(figures).model_fields, *type(figures).model_computed_fields]
        for name, value in ((name, getattr(figures, name)) for name in names):
            # What did not happen is left out; what is unknown is not.
            if value != 0:
                yield f"{_words(total)}: {_words(name)}", _text(name, value, UNKNOWN)


def _cells(item: BaseModel, columns: list[str]) -> Iterator[str]:
    least = "at least " if isinstance(item, CircuitFigures) and not item.complete else ""
    for name in columns:
        yield (least if name in ("openings", "seconds_open") else "") + _text(name, getattr(item, name))


# -- words


def _words(name: str) -> str:
    return WORDS.get(name, name.replace("_", " "))


def _text(name: str, value: Any, missing: str = NOTHING) -> str:
    if value is None:
        return NOTHING if name.endswith(("rate", "success", "time")) else missing
    if isinstance(value, str):
        return text_of(value)
    if isinstance(value, datetime):
        return utc_text(value)
    if isinstance(value, dict):
        counts = cast("dict[str, float]", value)
        return ", ".join(f"{_words(key)}: {_text('', number)}" for key, number in counts.items()) or "0"
    if name.startswith("seconds") or name == "recovery_time":
        return lasting(value)
    if name.endswith("rate") or name in ("objective", "remaining"):
        return f"{value:.1%}"
    return f"{value:,}" if isinstance(value, int) else f"{value:.2f}"


def text_of(text: str) -> str:
    """A name on one line, shortened and redacted: it may come from a service."""
    # XML allows no control characters.
    return fit_text(printable(redact(text)), LONGEST_NAME)


# -- as markdown and HTML, by the templates beside this file


def markdown_of(report: FleetReport) -> str:
    """The report as Markdown."""
    return _render("report.md", report)


def html_of(report: FleetReport) -> str:
    """The report as one page of HTML."""
    return _render("report.html", report)


def _render(template: str, report: FleetReport) -> str:
    return _templates.get_template(template).render(
        title=TITLE, headline=headline(report), report=report, sections=sections_of(report)
    )


def _cell(text: str) -> str:
    """Text that is neither markdown nor HTML, and does not end a cell."""
    safe = html.escape(text, quote=False)
    for letter in "\\`*_[]~#!":
        safe = safe.replace(letter, f"\\{letter}")
    return safe.replace("|", "&#124;")


_templates = Environment(
    loader=FileSystemLoader(Path(__file__).with_name("templates")),
    autoescape=select_autoescape(),
    trim_blocks=True,
    lstrip_blocks=True,
    keep_trailing_newline=True,
)
_templates.filters["cell"] = _cell
