"""A day whose every outcome is written down beforehand, as real task runs, and what a report must say."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any
from uuid import uuid4

from prefect import flow, task

from prefect_resilience import CircuitBreaker, Effect, Fallback, Retry, classify, on, resilient_task
from prefect_resilience.telemetry.edge.events import emit

SECRET = "sk-ant-api03-abcdefghijklmnopqrstuvwxyz0123456789"
QUICK = Retry(attempts=3, backoff={"kind": "none"}, retry_on=(ConnectionError,))


class Answered(Exception):
    """What a service said."""

    def __init__(self, status_code: int) -> None:
        self.status_code = status_code
        super().__init__(f"{status_code} for {SECRET}")


@dataclass
class Day:
    """Counted by the script itself, never by what it tests."""

    since: datetime
    circuit: str
    runs: Counter[str] = field(default_factory=Counter)
    tasks: dict[str, Counter[str]] = field(default_factory=dict)
    codes: Counter[str] = field(default_factory=Counter)
    categories: Counter[str] = field(default_factory=Counter)
    openings: int = 0
    letters: int = 0

    def ran(self, name: str, *errors: BaseException, **outcomes: int) -> None:
        """A run of that task, the errors of its failed attempts, and how it ended."""
        for error in errors:
            info = classify(error)
            self.codes[info.code] += 1
            self.categories[info.category.value] += 1
        retried = int(outcomes["attempts"] + outcomes.get("refused", 0) > 1)
        for counts in (self.runs, self.tasks.setdefault(name, Counter())):
            counts.update(runs=1, retried=retried, **outcomes)
            if outcomes.get("succeeded"):
                counts.update(recovered=retried, attempts_of_successes=outcomes["attempts"])


def play(number: int, *, named: bool = True) -> Day:
    """Run so many acts, each of a kind that chance (with a seed) chose; some make more than one task run.

    `named`: some runs have names of their own, which say nothing of their tasks.
    """
    chance = random.Random(number)
    day = Day(datetime.now(UTC), f"day-{uuid4().hex[:8]}")
    acts = _acts(day) if named else _acts(day)[:-1]
    script = [chance.choices(acts, [weight for weight, _ in acts])[0][1] for _ in range(number)]

    @flow(name="scripted-day")
    def scripted_day() -> None:
        for act in script:
            act()
        _circuit(day)
        _rejected_at_first(day)
        emit("run.parked", "run", "a run", {"flow": "scripted-day"})

    scripted_day()
    return day


def numbered(number: str) -> str:
    return number


def _acts(day: Day) -> list[tuple[int, Callable[[], None]]]:
    script: list[Any] = []

    def body() -> int:
        line = script.pop(0)
        if isinstance(line, BaseException):
            raise line
        return line

    fetch = resilient_task(name="fetch", retry=QUICK)(body)
    load = resilient_task(name="load", retry=QUICK, dead_letter=True)(body)
    ask = resilient_task(name="ask model", retry=QUICK, fallback=[lambda: 0])(body)
    guess = resilient_task(name="guess", retry=None, fallback=[Fallback.value(0, degraded=True)])(body)
    plain = task(name="plain", retries=2)(body)
    named = resilient_task(name="named", task_run_name="order-{number}")(numbered)

    def run(made: Any, *lines: Any, **outcomes: int) -> None:
        script[:] = lines
        made(return_state=True)
        errors = [line for line in lines if isinstance(line, BaseException)]
        ours = [] if made is plain else errors
        day.ran(made.name, *ours, attempts=len(lines), **outcomes)

    def lost() -> None:
        day.letters += 1
        run(load, ConnectionError("a"), ConnectionError("b"), ConnectionError("c"), failed=1)

    def twice() -> None:
        effect = Effect(key="pay:{order}", repeat="replay")
        paid = resilient_task(name="pay", effect=effect)(lambda order: order)
        order = uuid4().hex
        paid(order)
        day.ran("pay", attempts=1, succeeded=1)
        paid.with_options(refresh_cache=True)(order)
        day.ran("pay", attempts=0, replayed=1)

    def order() -> None:
        named(uuid4().hex[:5], return_state=True)
        # A run with a name of its own says only which function it ran.
        day.ran("numbered", attempts=1, succeeded=1)

    return [
        (60, lambda: run(fetch, 1, succeeded=1)),
        (6, lambda: run(fetch, ConnectionError("reset"), 1, succeeded=1)),
        (3, lambda: run(fetch, ConnectionRefusedError("no"), Answered(503), failed=1)),
        (3, lambda: run(load, ConnectionError("1"), ConnectionError("2"), 1, succeeded=1)),
        (3, lost),
        (3, lambda: run(fetch, ValueError("wrong"), failed=1)),
        (2, lambda: run(fetch, TimeoutError("late"), failed=1, timed_out=1)),
        (3, lambda: run(ask, ConnectionError("x"), Answered(429), fallbacks=1)),
        (3, lambda: run(guess, Answered(500), fallbacks=1, degraded=1)),
        (5, lambda: run(plain, ConnectionError("plain"), 1, succeeded=1)),
        (4, twice),
        (5, order),
    ]


def _circuit(day: Day) -> None:
    """Two failures open a circuit, and it refuses the third call."""
    circuit = CircuitBreaker(day.circuit, failure_threshold=2, open_for=600)

    @resilient_task(name="behind", retry=None, circuit=circuit)
    def behind() -> None:
        raise Answered(502)

    for _ in range(2):
        behind(return_state=True)
        day.ran("behind", Answered(502), attempts=1, failed=1)
    behind(return_state=True)
    day.ran("behind", attempts=0, refused=1, failed=1)
    day.openings += 1


def _rejected_at_first(day: Day) -> None:
    """A circuit that is open by hand rejects a call, and is closed before the retry."""
    circuit = CircuitBreaker(f"{day.circuit}-by-hand")
    retry = Retry(attempts=2, backoff={"kind": "none"}, retry_on=("circuit_open",))

    @resilient_task(name="patient", retry=retry, circuit=circuit)
    def patient() -> int:
        return 1

    circuit.force_open()
    stop = on("retry.scheduled", lambda event: circuit.force_closed())
    patient(return_state=True)
    stop()
    day.ran("patient", attempts=1, refused=1, succeeded=1)
