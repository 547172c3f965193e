"""The mixed load of the soak: everything that is kept anywhere, in bounded form.

A lap is one flow run with guarded calls of every kind, and a few hundred calls of circuits outside it.
Names, effects and letters come from a fixed set, so that after the first laps nothing new may stay behind.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any

import httpx

from prefect_resilience import (
    Backoff,
    Bulkhead,
    CircuitBreaker,
    CircuitOpenError,
    Effect,
    Fallback,
    RateLimit,
    Retry,
    batch,
    dead_letters,
    resilient_flow,
    resilient_task,
)
from prefect_resilience.testing import Reply, ScriptedService

BATCHES, EFFECTS, CIRCUITS = 5, 3, 50
CALLS = 300
"""Calls of circuits in a lap."""
LETTERS = 10
"""So many letters wait at most before they are replayed and purged."""

AT_ONCE = Retry(attempts=3, backoff=Backoff.none())
broken = False


@resilient_task(
    retry=AT_ONCE,
    circuit="soak:{provider}",
    timeout=5,
    limits=[Bulkhead(4), RateLimit(10_000, per="1s")],
    fallback=Fallback.value({"from": "nobody"}, degraded=True),
)
def ask(provider: int, address: str) -> Any:
    return httpx.get(f"{address}/ask/{provider}", timeout=5).raise_for_status().json()


@resilient_task(retry=AT_ONCE, effect=Effect(kind="external", key="invoice:{number}"))
def send(number: int, address: str) -> int:
    return httpx.post(f"{address}/send", json={"number": number}, timeout=5).raise_for_status().status_code


@resilient_task(retry=None, dead_letter=True)
def file(number: int) -> int:
    if broken:
        raise ConnectionError("the archive is away")
    return number


@resilient_flow
def day(lap: int, address: str) -> int:
    states: list[Any] = [ask(lap % 3, address), ask.submit(7, address).result()]
    with batch(f"soak-{lap % BATCHES}"):
        states += [send(number, address) for number in range(EFFECTS)]
    states += [file(number, return_state=True) for number in range(2)]
    return len(states)


class Load:
    """One lap after the other; `laps` and `calls` count what was done."""

    def __init__(self, seed: int = 0) -> None:
        self.laps = 0
        self.calls = 0
        self.letters = 0
        self._random = random.Random(seed)
        self._service = ScriptedService(self._line).on("/send", 201)
        self._circuits = [
            CircuitBreaker(f"soak-alone-{number}", failure_threshold=3, open_for=0.05, open_max=0.2)
            for number in range(CIRCUITS)
        ]

    def _line(self) -> Reply:
        """Nine of ten answers are good."""
        return Reply(503) if self._random.random() < 0.1 else Reply()

    def lap(self) -> None:
        global broken
        broken = True
        day(self.laps, self._service.url)
        self._service.requests.clear()
        self._call_circuits()
        broken = False
        self._replay()
        self.laps += 1

    def _call_circuits(self) -> None:
        outcomes: list[Callable[[], int]] = [lambda: 1, lambda: 1, lambda: 1, _failure]
        for _ in range(CALLS):
            circuit = self._random.choice(self._circuits)
            with suppress(ConnectionError, CircuitOpenError):
                circuit.call(self._random.choice(outcomes))
            self.calls += 1

    def _replay(self) -> None:
        waiting = dead_letters.list(status="waiting")
        if len(waiting) < LETTERS:
            return
        self.letters += len(waiting)
        dead_letters.replay([letter.id for letter in waiting])
        dead_letters.purge(timedelta(0))

    def close(self) -> None:
        self._service.close()


def _failure() -> int:
    raise ConnectionError("refused")
