"""What the processes of a fleet do, each in an interpreter of its own, and how they are started."""

import logging
import multiprocessing
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from typing import Any

from prefect_resilience import CircuitBreaker
from prefect_resilience.errors.exceptions import CircuitOpenError
from tests.guards.circuits.target import call_target

PATIENCE = 120.0


class Member:
    """One process of a fleet and the line to it."""

    def __init__(self, process: Any, line: Connection) -> None:
        self.process = process
        self._line = line

    def hear(self) -> Any:
        """What it says next."""
        if not self._line.poll(PATIENCE):
            raise TimeoutError(f"process {self.process.pid} says nothing")
        return self._line.recv()

    def say(self, message: Any) -> None:
        self._line.send(message)

    def kill(self) -> None:
        """kill -9, now."""
        self.process.kill()

    def end(self) -> None:
        """Wait until it has ended, without an error."""
        self.process.join(PATIENCE)
        assert self.process.exitcode == 0


Start = Callable[..., Member]


@contextmanager
def fleet() -> Iterator[Start]:
    """`start(work, **given)` runs `work(line, **given)` in a process; all are killed when the block ends."""
    context = multiprocessing.get_context("forkserver")
    context.set_forkserver_preload(
        ["prefect_resilience.guards.circuits.breaker", "prefect_resilience.stores.sqlite"]
    )
    members: list[Member] = []

    def start(work: Callable[..., None], **given: Any) -> Member:
        ours, theirs = context.Pipe()
        process = context.Process(target=work, args=(theirs,), kwargs=given, daemon=True)
        process.start()
        theirs.close()
        members.append(Member(process, ours))
        return members[-1]

    try:
        yield start
    finally:
        for member in members:
            member.kill()
        for member in members:
            member.process.join()


PRELUDE = """
import os
import time
from prefect_resilience import CircuitBreaker, CircuitOpenError
from prefect_resilience.guards.circuits.listeners import transition_listeners
say, hear = line.send, line.recv
def fail():
    raise TimeoutError("no answer")
def attempt(breaker, fn):
    try:
        return breaker.call(fn)
    except CircuitOpenError:
        return "refused"
    except TimeoutError:
        return "failed"
"""


def run_code(line: Connection, code: str, **given: Any) -> None:
    """In it, `say(x)`, `hear()` and what is given talk with the test."""
    exec(PRELUDE + code, {"line": line, **given})


def call_many(
    line: Connection, url: str, policy: dict[str, Any], port: int, name: str, calls: int, pause: float
) -> None:
    """`calls` calls with `pause` seconds after each; says what became of them.

    The circuit is known already once all may begin.
    """
    logging.getLogger("prefect_resilience").setLevel(logging.ERROR)
    breaker = CircuitBreaker(name, store=url, **policy)
    breaker.snapshot()
    line.send("ready")
    line.recv()
    seen: Counter[str] = Counter(refused=0)
    for _ in range(calls):
        try:
            breaker.call(call_target, port)
        except CircuitOpenError:
            seen["refused"] += 1
        except ConnectionError:
            seen["failed"] += 1
        time.sleep(pause)
    line.send(dict(seen))
