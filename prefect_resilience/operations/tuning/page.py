"""The advice of a period as a page of markdown with pictures, for an artifact. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby

from prefect_resilience.base.text import code_cell, one_line, plural, utc_text
from prefect_resilience.operations.tuning.pictures import (
    Legend,
    as_image,
    figure_text,
    interval_text,
    picture_of,
    value_text,
)
from prefect_resilience.operations.tuning.report import Comparison, TuningAdvice, TuningReport
from prefect_resilience.operations.tuning.sentences import fit_text
from prefect_resilience.telemetry.payloads import fitted_text

TITLE = "Advice for policies"
MOST_PICTURES = 20
MOST_NOT_JUDGED = 40
LONGEST = 600
TASKS_NAMED = 3


def headline_of(report: TuningReport) -> str:
    """One sentence: how much advice, from how many runs."""
    runs = plural(report.runs, "recorded run")
    if not report.advice:
        return f"No change is clearly better, by {runs}"
    tasks = len({one.task for one in report.advice})
    return f"{plural(len(report.advice), 'change')} advised for {plural(tasks, 'task')}, by {runs}"


def page_of(report: TuningReport) -> str:
    """The page."""
    return "\n".join(_lines(report)) + "\n"


def _lines(report: TuningReport) -> Iterator[str]:
    yield f"# {TITLE}"
    yield ""
    goal = "" if report.goal is None else f" Goal: {report.goal}."
    yield f"{headline_of(report)}, from {utc_text(report.since)} to {utc_text(report.until)}.{goal}"
    if report.advice:
        yield ""
        yield "`prefect-resilience tune --apply` writes it to the policy blocks, `--undo` the old values."
        yield ""
        yield "| task | option | now | better | why |"
        yield "|---|---|---|---|---|"
        for one in report.advice:
            texts = (one.task, one.option, value_text(one.now), value_text(one.better))
            cells = [*(code_cell(fitted_text(text, LONGEST)) for text in texts), _text(one.why)]
            yield "| " + " | ".join(cells) + " |"
    for effect, changed in list(_changes(report))[:MOST_PICTURES]:
        yield from _picture(effect, changed)
    yield from _rest(report)


def _changes(report: TuningReport) -> Iterator[tuple[Comparison, list[TuningAdvice]]]:
    """Each comparison with the advice that it is of: options that change together have one."""
    for (_, effect), group in groupby(report.advice, lambda one: (one.task, one.effect)):
        if effect is not None:
            yield effect, list(group)


def _picture(effect: Comparison, changed: list[TuningAdvice]) -> Iterator[str]:
    names = [one.option if len(changed) == 1 else one.option.rpartition(".")[2] for one in changed]
    now = ", ".join(f"{name}: {value_text(one.now)}" for name, one in zip(names, changed, strict=True))
    then = ", ".join(f"{name}: {value_text(one.better)}" for name, one in zip(names, changed, strict=True))
    title = f"{changed[0].task}: {', '.join(names)}"
    yield ""
    yield f"## {_text(title)}"
    yield ""
    yield as_image(picture_of(effect, title, Legend(now, then)), title)
    yield ""
    yield from comparison_table(effect)


def comparison_table(comparison: Comparison) -> Iterator[str]:
    """The figures side by side as a table of markdown."""
    yield "| figure | now | then | difference, 9 times in 10 |"
    yield "|---|---:|---:|---|"
    for one in comparison.figures:
        now, then = figure_text(one, one.now), figure_text(one, one.then)
        yield f"| {one.name} | {now} | {then} | {interval_text(one)} |"


def _rest(report: TuningReport) -> Iterator[str]:
    yield from _list("How good the replay is", fits_of(report))
    yield from _list("Not judged", not_judged_of(report))
    yield from _list("Unknown", report.unknown.values())


def fits_of(report: TuningReport) -> list[str]:
    """The error of each task's replay, in sentences."""
    return [f"{fit.task}: {fit_text(fit)}" for fit in report.fits if fit.recovered_off is not None]


def not_judged_of(report: TuningReport) -> list[str]:
    """What was not judged, in sentences: one for all tasks with the same reason."""
    tasks: dict[tuple[str, str], list[str]] = {}
    for one in report.not_judged:
        tasks.setdefault((one.option, one.why), []).append(one.task)
    return [
        f"{', '.join(some[:TASKS_NAMED])}{_more(some)}{'' if option == '*' else f': {option}'}: {why}"
        for (option, why), some in tasks.items()
    ]


def _more(tasks: list[str]) -> str:
    return f" and {len(tasks) - TASKS_NAMED} more tasks" if len(tasks) > TASKS_NAMED else ""


def _list(title: str, sentences: Iterable[str]) -> Iterator[str]:
    told = list(sentences)
    if not told:
        return
    yield ""
    yield f"## {title}"
    yield ""
    for sentence in told[:MOST_NOT_JUDGED]:
        yield f"- {_text(sentence)}"
    if len(told) > MOST_NOT_JUDGED:
        yield f"- and {len(told) - MOST_NOT_JUDGED} more"


def _text(text: str) -> str:
    """Text that is neither markdown nor HTML."""
    safe = fitted_text(one_line(text), LONGEST)
    for letter in "\\`*_[]<>#!":
        safe = safe.replace(letter, f"\\{letter}")
    return safe.replace("|", "&#124;")
