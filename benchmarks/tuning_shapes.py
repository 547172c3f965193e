"""Large records of many shapes, for `benchmarks.tuning_advice_speed`: who calls which services, how often.

A record is written to a file in parts, so that a process that reads it needs no memory for another copy.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from prefect_resilience.operations.tuning.record import RecordedPeriod, RecordedRun, RecordedTask
from tests.operations.tuning.worlds import GOOD_RETRY, TrueService, World, live, outages

AT_ONCE = 1000
TEN_OUTAGES = outages([9, 21, 40, 55, 70, 90, 101, 118, 130, 150], 900.0, "half-hang")
EVERY_HOUR = outages([hour + 0.2 for hour in range(167)], 200.0, "half-hang")
SERVICE = TrueService(hang=0.002, blip=0.01, stuck=0.005, troubles=TEN_OUTAGES)
GUARDED: Mapping[str, Any] = {"retry": GOOD_RETRY, "timeout": 30.0, "circuit": {"name": "service"}}
STUBBORN = {"attempts": 8, "backoff": {"kind": "exponential", "initial": 0.5}}


@dataclass(frozen=True)
class Shape:
    """`tasks` tasks with the same options, behind one circuit or (`apart`) each with a service of its own."""

    name: str
    service: TrueService = SERVICE
    options: Mapping[str, Any] = field(default_factory=lambda: GUARDED)
    tasks: int = 1
    apart: bool = False


SHAPES = (
    Shape("one task"),
    Shape("20 tasks behind one circuit", tasks=20),
    Shape(
        "20 tasks with bad options behind one circuit",
        options={**GUARDED, "retry": STUBBORN, "timeout": 120.0},
        tasks=20,
    ),
    Shape("200 tasks, a service each", tasks=200, apart=True),
    Shape("a limit", options={**GUARDED, "limits": {"max_concurrent": 2, "max_wait": 10.0}}),
    Shape("openings in every hour", replace(SERVICE, troubles=EVERY_HOUR)),
    Shape("20 tasks, openings in every hour", replace(SERVICE, troubles=EVERY_HOUR), tasks=20),
    Shape(
        "runs of half an hour",
        replace(SERVICE, median=1800.0),
        {**GUARDED, "timeout": 7200.0, "retry": {**GOOD_RETRY, "max_elapsed": 14_400.0}},
    ),
    Shape("every third call fails", TrueService(blip=0.3, stuck=0.02), {"retry": STUBBORN, "timeout": 5.0}),
    Shape(
        "an adaptive circuit", options={**GUARDED, "circuit": {"name": "service", "adaptive": True}}, tasks=5
    ),
)


def written(shape: Shape, runs: int, path: Path) -> None:
    """Write the record of a week with so many runs in all."""
    with path.open("wb") as file:
        for number, (period, task) in enumerate(_lived(shape, runs)):
            bare = task.model_copy(update={"name": f"task-{number:03}", "runs": ()})
            parts = [task.runs[at : at + AT_ONCE] for at in range(0, len(task.runs), AT_ONCE)]
            pickle.dump((period.since, period.until, bare), file)
            pickle.dump(len(parts), file)
            for part in parts:
                pickle.dump(part, file)


def _lived(shape: Shape, runs: int) -> Iterator[tuple[RecordedPeriod, RecordedTask]]:
    """Each task of a shape. Tasks behind one circuit take turns with the runs of one world."""
    if shape.apart:
        for number in range(shape.tasks):
            circuit = {**shape.options["circuit"], "name": f"service-{number}"}
            world = World(
                f"{number}", shape.service, {**shape.options, "circuit": circuit}, runs // shape.tasks
            )
            period, _ = live(world, 1)
            yield period, period.tasks[0]
    else:
        period, _ = live(World(shape.name, shape.service, shape.options, runs), 1)
        [task] = period.tasks
        for number in range(shape.tasks):
            yield period, task.model_copy(update={"runs": task.runs[number :: shape.tasks]})


def read(path: Path) -> RecordedPeriod:
    """The record that `written` wrote."""
    tasks: list[RecordedTask] = []
    since, until = float("inf"), 0.0
    with path.open("rb") as file:
        for begins, ends, task in _loaded(file):
            since, until = min(since, begins), max(until, ends)
            runs: list[RecordedRun] = []
            for _ in range(pickle.load(file)):
                runs += pickle.load(file)
            tasks.append(task.model_copy(update={"runs": tuple(runs)}))
    total = sum(len(task.runs) for task in tasks)
    return RecordedPeriod(since=since, until=until, tasks=tuple(tasks), runs=total, read=total)


def _loaded(file: Any) -> Iterator[Any]:
    while file.peek(1):
        yield pickle.load(file)
