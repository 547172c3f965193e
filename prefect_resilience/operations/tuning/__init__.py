"""`tune` and `what-if`: what to change, and what other numbers would do, from the record of a period."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from importlib.util import find_spec

from prefect_resilience.base.durations import seconds
from prefect_resilience.base.policy import nearest
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.operations.tuning.record import RecordedPeriod
from prefect_resilience.operations.tuning.report import EVERY_TASK, Comparison, TuningReport

Since = str | timedelta | datetime
NEEDS_NUMPY = "tune needs numpy: pip install 'prefect-resilience[tune]'"


def tune(since: Since = "7d", task: str | None = None) -> TuningReport:
    """Say which numbers of the tasks' policies to change, from what their runs did in a period.

    Reads the runs, retries and circuits of the period from the Prefect API, and replays them with other
    numbers. Advice is given only if it is clearly better. Nothing is changed. Needs numpy (the extra `tune`).

    since: the start of the period, or how long ago as in "24h" or "7d". task: only this task.

    Raises ConfigurationError for an unknown task or without numpy, and ReportError if the Prefect API is
    unavailable.

        for advice in tune("7d").advice:
            print(advice.task, advice.option, advice.now, advice.better, advice.why)
    """
    period = _read(since, task)
    from prefect_resilience.operations.tuning.advice import advise

    report = advise(period)
    if task is None:
        return report
    advice = tuple(tip for tip in report.advice if tip.task == task)
    not_judged = tuple(unjudged for unjudged in report.not_judged if unjudged.task in (task, EVERY_TASK))
    return report.model_copy(update={"advice": advice, "not_judged": not_judged})


def compare_with(task: str, options: Mapping[str, object], since: Since = "24h") -> Comparison:
    """A period again with other options of one task, side by side with its own. `options` are the values by
    their places in a `ResiliencePolicy` block.

        print(compare_with("label", {"retry.attempts": 5, "timeout": 3}).figures)
    """
    period = _read(since, task)
    from prefect_resilience.operations.tuning.advice import what_if

    return what_if(period, task, options)


def has_numpy() -> bool:
    return find_spec("numpy") is not None


def _read(since: Since, task: str | None) -> RecordedPeriod:
    """The period, only with this task and the tasks behind the same service if a task is given."""
    if not has_numpy():
        raise ConfigurationError(NEEDS_NUMPY)
    from prefect_resilience.operations.tuning.record import read_evidence

    try:
        moment = timedelta(seconds=seconds("since", since)) if isinstance(since, str) else since
    except ValueError as error:
        raise ConfigurationError(f'{error}: write how long ago, as in since="24h" or since="7d"') from None
    period = read_evidence(moment)
    if task is None:
        return period
    services = {record.name: record.service for record in period.tasks if record.runs}
    if task not in services:
        raise ConfigurationError(
            f"there are no runs of a resilient task {task!r} in this period{nearest(task, sorted(services))}"
        )
    tasks = tuple(record for record in period.tasks if services.get(record.name) == services[task])
    return RecordedPeriod(period.since, period.until, tasks, period.unknown)
