"""`tune` and `what-if`: what to change, and what other numbers would do, from the record of a period."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime, timedelta

from prefect_resilience.base.durations import seconds
from prefect_resilience.base.policy import nearest
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.operations.tuning.advising import advise, what_if
from prefect_resilience.operations.tuning.reading import read_evidence
from prefect_resilience.operations.tuning.record import RecordedPeriod, RecordedTask
from prefect_resilience.operations.tuning.report import Comparison, TuningGoal, TuningReport

Since = str | timedelta | datetime


def tune(since: Since = "7d", task: str | None = None, goal: TuningGoal | None = None) -> TuningReport:
    """Say which numbers of the tasks' policies to change, from what their runs did in a period.

    Reads the runs, retries and circuits of the period from the Prefect API, and replays them with other
    numbers. Advice is given only if it is clearly better. Nothing is changed.

    since: the start of the period, or how long ago as in "24h" or "7d". task: only this task. goal: what
    matters more than usual: "recover" (runs that end well), "latency" (short runs) or "load" (few calls to a
    service in trouble).

    Raises ConfigurationError for an unknown task, and ReportError if the Prefect API is unavailable.

        for advice in tune("7d").advice:
            print(advice.task, advice.option, advice.now, advice.better, advice.why)
    """
    period = read_evidence(_moment(since))
    if task is None:
        return advise(period, goal=goal)
    report = advise(_narrowed(period, task), goal=goal)
    return report.model_copy(
        update={
            "advice": tuple(one for one in report.advice if one.task == task),
            "not_judged": tuple(one for one in report.not_judged if one.task == task),
        }
    )


async def atune(since: Since = "7d", task: str | None = None, goal: TuningGoal | None = None) -> TuningReport:
    """`tune` from a coroutine; the event loop is not blocked.

    report = await atune("24h")
    """
    return await asyncio.to_thread(tune, since, task, goal)


def compared_with(task: str, options: Mapping[str, object], since: Since = "24h") -> Comparison:
    """A period again with other options of one task, side by side with its own. `options` is in the form of a
    `ResiliencePolicy` block.

        print(compared_with("label", {"retry": {"attempts": 5}, "timeout": 3}).figures)
    """
    period = read_evidence(_moment(since))
    return what_if(_narrowed(period, task), task, options)


def _moment(since: Since) -> timedelta | datetime:
    if not isinstance(since, str):
        return since
    try:
        return timedelta(seconds=seconds("since", since))
    except ValueError as error:
        raise ConfigurationError(f'{error}: write how long ago, as in since="24h" or since="7d"') from None


def _narrowed(period: RecordedPeriod, task: str) -> RecordedPeriod:
    """The period with this task and the tasks that share its circuits. Raises ConfigurationError."""
    names = sorted(one.name for one in period.tasks)
    found = next((one for one in period.tasks if one.name == task), None)
    if found is None:
        raise ConfigurationError(
            f"there are no runs of a resilient task {task!r} in this period{nearest(task, names)}"
        )
    circuits = _circuits(found)
    tasks = tuple(one for one in period.tasks if one is found or circuits & _circuits(one))
    return period.model_copy(update={"tasks": tasks})


def _circuits(task: RecordedTask) -> set[str]:
    named = {one.circuit for run in task.runs for one in run.attempts if one.circuit is not None}
    return named if task.circuit is None else named | {task.circuit}
