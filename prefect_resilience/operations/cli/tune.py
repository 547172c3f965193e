"""The commands `tune` and `what-if`: which numbers of a policy to change, and what others would do."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Annotated, Any

from cyclopts import Parameter
from rich.console import RenderableType

from prefect_resilience.base.text import plural, printable
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.operations import tuning
from prefect_resilience.operations.cli import look, options
from prefect_resilience.operations.cli.options import Flag, Json, Yes
from prefect_resilience.operations.tuning import applying
from prefect_resilience.operations.tuning import report as texts
from prefect_resilience.operations.tuning.applying import OptionNote
from prefect_resilience.operations.tuning.report import TuningReport, value_text

ADVICE: look.Columns = {
    **{"task": "task", "option": "option", "now": lambda advice: value_text(advice.now)},
    **{"better": lambda advice: value_text(advice.better), "why": "why"},
}
CHANGES: look.Columns = {
    **{"block": "block", "task": "task", "option": "option"},
    **{"now": lambda change: value_text(change.now), "after": lambda change: value_text(change.after)},
}
NEVER_TRIED = "What was never tried is not in the record, such as longer timeouts and further attempts."
VERDICTS: dict[bool | None, Any] = {
    None: "",
    True: look.state("done", "better"),
    False: look.state("wrong", "worse"),
}


def tune_command(
    *,
    since: str = "7d",
    task: str | None = None,
    apply: Flag = False,
    restore_old: Annotated[Flag, Parameter(name="--undo")] = False,
    yes: Yes = False,
    json: Json = False,
) -> int:
    """Say which numbers of the tasks' policies to change, from what their runs did.

    The runs of the period are replayed with other numbers. Only --apply changes anything.

    Example: prefect-resilience tune --since 7d
    Example: prefect-resilience tune --task label --apply

    Args:
        since: How long ago, as in 24h or 7d, or a time as in 2026-11-20T18:00.
        task: Only the advice for this task.
        apply: Write the advice to the ResiliencePolicy blocks of the tasks, after a question.
        restore_old: Give the blocks the values from before the latest --apply.
    """
    if apply and restore_old:
        raise ConfigurationError("`--apply` and `--undo` exclude each other: write one of them")
    if yes and not apply:
        raise ConfigurationError("--yes confirms --apply: add --apply, or leave --yes out")
    if restore_old:
        return _restore(json=json)
    report = tuning.tune(options.since("--since", since), task)
    if not apply:
        return look.answer(report, *_advice(report), json=json)
    return _apply(report, yes=yes, json=json)


def _advice(report: TuningReport) -> Iterator[RenderableType]:
    if report.advice:
        yield look.table(ADVICE, report.advice)
    yield f"{texts.headline_of(report)}."
    yield look.card({"not judged": [*texts.not_judged_of(report)], "unknown": [*report.unknown.values()]})


# -- applying and restoring


def _apply(report: TuningReport, *, yes: bool, json: bool) -> int:
    plan = applying.plan_of(report)
    notes = list(_notes(plan.left, "not written"))
    if not plan.changes:
        sentence = f"{texts.headline_of(report)}. Nothing was written."
        look.answer({"applied": None, "left": plan.left}, *notes, sentence, json=json)
        return 1 if plan.left else 0
    blocks = f"the {'block' if len(plan.blocks) == 1 else 'blocks'} {', '.join(plan.blocks)}"
    number = plural(len(plan.changes), "change")
    if not yes:
        look.confirm(f"write {number} to {blocks}", CHANGES, plan.changes)
    entry = applying.apply_changes(report, plan)
    done = (
        f"{number} written to {blocks}. Running workers use them "
        "within 30 s. `prefect-resilience tune --undo` restores the old values."
    )
    table = look.table(CHANGES, plan.changes)
    return look.answer({"applied": entry, "left": plan.left}, table, *notes, done, json=json)


def _notes(left: Iterable[OptionNote], what: str) -> Iterator[RenderableType]:
    return (look.finding("note", f"{note.task}, {note.option}", what, note.why) for note in left)


def _restore(*, json: bool) -> int:
    entry, back, not_restored = applying.restore()
    sentence = f"{plural(len(back), 'change')} restored, of the advice that {printable(entry.by)} applied."
    look.answer({"restored": back, "left": not_restored}, *_notes(not_restored, "stays"), sentence, json=json)
    return 1 if not_restored else 0


# -- what if


def what_if_command(
    *,
    task: str,
    attempts: int | None = None,
    timeout: float | None = None,
    set_: Annotated[list[str] | None, Parameter(name="--set")] = None,
    since: str = "24h",
    json: Json = False,
) -> int:
    """Replay a period with other options of one task, and show both side by side.

    Example: prefect-resilience what-if --task label --attempts 5 --timeout 3 --since 24h
    Example: prefect-resilience what-if --task label --set circuit.open_for=10

    Args:
        task: The name of the task.
        attempts: The number of attempts, the first one included.
        timeout: Seconds that one attempt may take.
        set_: Another option, as in retry.max_elapsed=60 or circuit.open_for=10; repeat it for several.
        since: How long ago, as in 24h or 7d, or a time as in 2026-11-20T18:00.
    """
    wanted: dict[str, Any] = {} if attempts is None else {"retry.attempts": attempts}
    wanted |= {} if timeout is None else {"timeout": timeout}
    wanted |= options.json_pairs("--set", set_ or (), "name=value, as in --set retry.max_elapsed=60")
    if not wanted:
        raise ConfigurationError("what-if needs an option to change, as in --attempts 5 or --timeout 3")
    comparison = tuning.compare_with(task, wanted, options.since("--since", since))
    then = ", ".join(f"{name}={value_text(value)}" for name, value in wanted.items())
    columns: look.Columns = {
        "figure": "name",
        "as it ran": lambda figure: texts.figure_text(figure, figure.now),
        then: lambda figure: texts.figure_text(figure, figure.then),
        "difference, 9 times in 10": texts.interval_text,
        "": lambda figure: VERDICTS[figure.better],
    }
    replayed = f"{comparison.runs:,.0f} runs of {printable(comparison.task)} were replayed."
    return look.answer(comparison, look.table(columns, comparison.figures), replayed, NEVER_TRIED, json=json)
