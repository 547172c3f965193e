"""What `tune` and `what-if` report, and the advice as a page of markdown. Pure.

Durations are seconds. Intervals hold nine times in ten, by a bootstrap over the days of the record.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from pydantic import BaseModel, Field, JsonValue

from prefect_resilience.base.text import plural, printable, utc_text
from prefect_resilience.tasks.summaries.markdown import table, text
from prefect_resilience.telemetry.payloads import fit_text

if TYPE_CHECKING:
    from prefect_resilience.operations.tuning.applying import AppliedTuning

LONGEST = 600
EVERY_TASK = "every task"


class ComparedFigure(BaseModel, frozen=True):
    """One figure under two policies. `low` and `high` bound the difference `then - now`.

    better: whether `then` is clearly better; None if the interval includes 0, or neither way is better.
    """

    name: str
    unit: str
    now: float
    then: float
    low: float
    high: float
    better: bool | None = None


class Comparison(BaseModel, frozen=True):
    """A period with the options of now and with others, side by side."""

    task: str
    runs: float
    figures: tuple[ComparedFigure, ...]


class TuningAdvice(BaseModel, frozen=True):
    """One option to change.

    option: its place in a `ResiliencePolicy` block, as in "retry.attempts" or "circuit.failure_threshold".
    now, better: its values. why: one sentence. evidence: the numbers behind it: `hit` (runs whose first call
        failed), `gain` with `low` and `high` (in seconds, see `advice.PRICES`), and by how much less there is
        of `failed`, `fallback` and `recovered` runs, of `seconds` in them, of `waited` seconds, of `calls`,
        and of `dead` calls, which failed in outages.
    """

    task: str
    option: str
    now: JsonValue
    better: JsonValue
    why: str
    evidence: dict[str, float] = Field(default_factory=dict)


class OptionNote(BaseModel, frozen=True):
    """An option that was not judged, not written or not restored, and the reason in one sentence."""

    task: str
    option: str
    why: str


class TuningReport(BaseModel, frozen=True):
    """The advice of a period.

    runs: the number of runs in the record. unknown: what the record itself lacks.
    """

    since: float
    until: float
    runs: int
    advice: tuple[TuningAdvice, ...] = ()
    not_judged: tuple[OptionNote, ...] = ()
    unknown: dict[str, str] = Field(default_factory=dict)

    def apply(self) -> AppliedTuning | None:
        """Write the advice to the tasks' `ResiliencePolicy` blocks; None if no block would change.

        The old values are stored first: `prefect-resilience tune --undo` restores them. Advice for a task
        without a block is left out. Raises StoreUnavailable, and ReportError if there is no Prefect API.

            tune("7d").apply()
        """
        from prefect_resilience.operations.tuning.applying import apply_changes, plan_of

        return apply_changes(self, plan_of(self))


# -- as text


def value_text(value: object) -> str:
    """The value of an option as text: `3`, `0.5`, `initial=1, maximum=30`."""
    if isinstance(value, dict):
        items = cast("dict[str, object]", value).items()
        return ", ".join(f"{name}={value_text(part)}" for name, part in items if part not in (None, [], {}))
    if isinstance(value, list | tuple):
        return ", ".join(map(value_text, cast("list[object]", value))) or "none"
    if isinstance(value, float):
        return f"{value:g}"
    return "none" if value is None else fit_text(printable(str(value)), LONGEST)


def figure_text(one: ComparedFigure, value: float) -> str:
    """The number with its unit."""
    return f"{value:,.0f} {one.unit}" if abs(value) >= 100 else f"{value:.3g} {one.unit}"


def interval_text(one: ComparedFigure) -> str:
    """The interval of the difference, as in "-120 to -40"."""
    low, high = (f"{value:+,.0f}" if abs(value) >= 10 else f"{value:+.2g}" for value in (one.low, one.high))
    return f"{low} to {high}"


def headline_of(report: TuningReport) -> str:
    """One sentence: how much advice, from how many runs."""
    runs = plural(report.runs, "recorded run")
    if not report.advice:
        return f"No change is clearly better, by {runs}"
    tasks = len({tip.task for tip in report.advice})
    return f"{plural(len(report.advice), 'change')} advised for {plural(tasks, 'task')}, by {runs}"


def not_judged_of(report: TuningReport) -> list[str]:
    """What was not judged, in sentences: one for all tasks with the same reason."""
    tasks: dict[tuple[str, str], list[str]] = {}
    for unjudged in report.not_judged:
        tasks.setdefault((unjudged.option, unjudged.why), []).append(unjudged.task)
    return [
        f"{', '.join(some[:3])}{f' and {len(some) - 3} more tasks' if some[3:] else ''}: {option}: {why}"
        for (option, why), some in tasks.items()
    ]


def page_of(report: TuningReport) -> str:
    """The advice as a page of markdown."""
    period = f"from {utc_text(report.since)} to {utc_text(report.until)}"
    lines = ["# Advice for policies", "", f"{headline_of(report)}, {period}.", ""]
    if report.advice:
        lines += [
            "`tune --apply` writes it to the policy blocks, `tune --undo` the old values.",
            "",
        ]
    rows = [
        (tip.task, tip.option, value_text(tip.now), value_text(tip.better), tip.why) for tip in report.advice
    ]
    lines += table("Changes", ("task", "option", "now", "better", "why"), rows)
    for title, sentences in (("Not judged", not_judged_of(report)), ("Unknown", report.unknown.values())):
        if sentences:
            lines += [f"## {title}", "", *(f"- {text(sentence)}" for sentence in sentences), ""]
    return "\n".join(lines)
