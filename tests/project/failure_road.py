"""How many files, functions and Python calls of the package a call passes, from the task to Prefect's state.

    python -m tests.project.failure_road [--long]

A flow run calls a task twice, on the API at hand or an ephemeral one; the second call is counted with
`sys.setprofile`. `--long` adds the files with their calls. The exit code is 1 if a figure is above its limit.
"""

from __future__ import annotations

import os
import sys
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Any

from prefect import flow
from prefect.settings import PREFECT_API_URL
from prefect.testing.utilities import prefect_test_harness

import prefect_resilience
from prefect_resilience import Effect, Retry, resilient_task

PACKAGE = str(Path(prefect_resilience.__file__).parent)
# The largest values: files, functions, Python calls. Lower one as soon as a lower one holds.
LIMITS = {
    "a task with one retry": (29, 180, 661),
    "an effect with a timeout": (30, 173, 247),
}


@dataclass(frozen=True)
class Road:
    """The functions of the package that one call passes, with how many times each of them was called."""

    name: str
    calls: Counter[tuple[str, str]]

    @property
    def figures(self) -> tuple[int, int, int]:
        return len({file for file, _ in self.calls}), len(self.calls), self.calls.total()

    @property
    def holds(self) -> bool:
        return all(value <= limit for value, limit in zip(self.figures, LIMITS[self.name], strict=True))

    def __str__(self) -> str:
        words = "files", "functions", "calls"
        figures = (
            f"{value} {word} of at most {limit}"
            for value, word, limit in zip(self.figures, words, LIMITS[self.name], strict=True)
        )
        return f"{self.name}: {', '.join(figures)}"

    def by_file(self) -> list[str]:
        calls: Counter[str] = Counter()
        for (file, _), number in self.calls.items():
            calls[os.path.relpath(file, PACKAGE)] += number
        return [f"{number:>6}  {file}" for file, number in calls.most_common()]


def count(name: str, call: Callable[[], Any]) -> Road:
    """The road of the second call: the first one pays for what happens once in a process."""
    calls: Counter[tuple[str, str]] = Counter()

    def profile(frame: FrameType, event: str, _: Any) -> None:
        code = frame.f_code
        if event == "call" and code.co_filename.startswith(PACKAGE):
            calls[code.co_filename, code.co_qualname] += 1

    call()
    sys.setprofile(profile)
    try:
        call()
    finally:
        sys.setprofile(None)
    return Road(name, calls)


@resilient_task(retry=Retry(attempts=2, backoff="none"))
def refused() -> None:
    raise ConnectionError("refused")


@resilient_task(effect=Effect(kind="external", key="invoice:{order}"), timeout=30)
def send(order: int) -> int:
    return order


@flow(log_prints=False)
def calls() -> list[Road]:
    orders = iter(range(2))
    return [
        count("a task with one retry", lambda: refused(return_state=True)),
        count("an effect with a timeout", lambda: send(next(orders))),
    ]


def roads() -> list[Road]:
    if PREFECT_API_URL.value():
        return calls()
    with prefect_test_harness(server_startup_timeout=120):
        return calls()


def main() -> None:
    measured = roads()
    for road in measured:
        print(road)
        if "--long" in sys.argv or not road.holds:
            print("\n".join(road.by_file()))
    sys.exit(not all(road.holds for road in measured))


if __name__ == "__main__":
    main()
