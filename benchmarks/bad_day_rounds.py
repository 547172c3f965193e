"""The days of `benchmarks.bad_day`, one for each rival: its processes, its servers, and the word to begin."""

from __future__ import annotations

import multiprocessing
import os
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import Connection
from multiprocessing.context import SpawnProcess
from pathlib import Path
from typing import Any

from benchmarks import bad_day_calls, bad_day_services
from benchmarks.bad_day_calls import Seen
from benchmarks.bad_day_figures import Round
from benchmarks.bad_day_script import WITH_CIRCUITS, Call, Form, schedule
from benchmarks.circuits import redis_server
from benchmarks.report import serving

LEAD = 0.5
"""Seconds between the word and the beginning of a day."""

LONGEST_SILENCE = 240.0
"""Seconds in which a child must say something; that is a whole day and the last retries of it."""

QUIET = {
    "PREFECT_LOGGING_LEVEL": "CRITICAL",
    "PREFECT_LOGGING_TO_API_ENABLED": "false",
    "PREFECT_RESULTS_PERSIST_BY_DEFAULT": "false",
}


class Child:
    """A process of its own, and the line to it."""

    def __init__(self, run: Any, *args: Any) -> None:
        context = multiprocessing.get_context("spawn")
        self.line, theirs = context.Pipe()
        self.process: SpawnProcess = context.Process(target=run, args=(theirs, *args), daemon=True)
        self.process.start()
        theirs.close()

    def close(self) -> None:
        with suppress(OSError):
            self.line.send(None)
        self.process.join(10)
        if self.process.is_alive():
            self.process.terminate()
            self.process.join(10)


def heard(line: Connection) -> Any:
    """What a child says next. Raises TimeoutError when it is silent for too long, EOFError when it died."""
    if not line.poll(LONGEST_SILENCE):
        raise TimeoutError(f"a process said nothing for {LONGEST_SILENCE:g} s")
    return line.recv()


@contextmanager
def environment(values: Mapping[str, str]) -> Iterator[None]:
    """These variables for the processes that are started meanwhile."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def started(stack: ExitStack, run: Any, *args: Any) -> Child:
    child = Child(run, *args)
    stack.callback(child.close)
    return child


def live(form: Form, seed: int, rivals: Sequence[str], api: str | None = None) -> list[Round]:
    """The day of each rival, one after the other; on the Prefect server at `api`, or one of its own."""
    calls = schedule(form, seed)
    with ExitStack() as stack:
        home = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bad-day-")))
        if api is None:
            api, _ = stack.enter_context(serving(home))
        redis_port = stack.enter_context(redis_server())
        own = {**QUIET, "PREFECT_API_URL": api, "PREFECT_HOME": str(home)}
        with environment(own):
            services = started(stack, bad_day_services.run, form, seed)
            ports = heard(services.line)
            callers = [
                started(stack, bad_day_calls.run, form, ports, redis_port, str(home / f"caller-{number}.log"))
                for number in range(form.processes)
            ]
        return [one_day(rival, calls, services.line, [caller.line for caller in callers]) for rival in rivals]


def one_day(rival: str, calls: Sequence[Call], services: Connection, callers: Sequence[Connection]) -> Round:
    for process, caller in enumerate(callers):
        caller.send((rival, [call for call in calls if call.process == process]))
    for caller in callers:
        assert heard(caller) == "ready"
    begins = time.time() + LEAD
    for line in (services, *callers):
        line.send(begins)
    seen = Seen()
    for caller in callers:
        joined(seen, heard(caller))
    load = os.getloadavg()[0]
    services.send("log")
    return Round(rival, begins, calls, seen, heard(services), load, rival in WITH_CIRCUITS)


def joined(seen: Seen, other: Seen) -> None:
    seen.begun.update(other.begun)
    seen.outcomes.update(other.outcomes)
    seen.attempts.extend(other.attempts)
    seen.changes.extend(other.changes)
