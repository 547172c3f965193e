"""Records of runs, written attempt by attempt."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

from prefect_resilience.operations.tuning.calls import services_of
from prefect_resilience.operations.tuning.record import (
    RecordedAttempt,
    RecordedPeriod,
    RecordedRun,
    RecordedTask,
)
from prefect_resilience.operations.tuning.service import ServiceModel, fitted
from tests.operations.tuning.worlds import World, live


def model_of(world: World, seed: int = 1) -> ServiceModel:
    period, _ = live(world, seed)
    [record] = services_of(period)
    return fitted(record, period.until)


def attempt(
    start: float,
    category: str | None = None,
    rejected_by: Literal["circuit", "limit"] | None = None,
    seconds: float = 0.1,
    circuit: str | None = None,
) -> RecordedAttempt:
    return RecordedAttempt(
        start=start,
        seconds=seconds,
        succeeded=category is None,
        category=category,
        rejected_by=rejected_by,
        circuit=circuit,
    )


def run(number: int, *attempts: RecordedAttempt, ended: Any = None) -> RecordedRun:
    last = attempts[-1]
    return RecordedRun(
        run_id=str(number),
        start=attempts[0].start,
        end=last.start + last.seconds,
        ended=ended or ("succeeded" if last.succeeded else "failed"),
        attempts=attempts,
    )


def period_of(*tasks: RecordedTask, until: float = 10_000.0) -> RecordedPeriod:
    return RecordedPeriod(since=0.0, until=until, tasks=tasks)


def task_of(name: str, runs: Sequence[RecordedRun], **more: Any) -> RecordedTask:
    return RecordedTask(name=name, runs=tuple(runs), options=more.pop("options", {"timeout": 5.0}), **more)
