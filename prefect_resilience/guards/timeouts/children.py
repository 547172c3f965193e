"""The parent's side of `mode="process"`: child processes that are started ahead, reused, and ended.

The pools of the standard library, loky, pebble and anyio do not fit: none of them kills the processes that a
call started, a hanging pebble worker outlives a killed parent, and workers of the standard library and anyio
run the user's `__main__` again.
"""

from __future__ import annotations

import logging
import os
import pickle
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from contextvars import Context
from multiprocessing import Pipe
from multiprocessing.connection import Connection
from typing import Any

from prefect_resilience.base.deadlines import overdue
from prefect_resilience.base.drive import SLICE_SECONDS
from prefect_resilience.base.process import at_exit, in_forked_child
from prefect_resilience.errors.exceptions import ResilienceError
from prefect_resilience.guards.timeouts.child import BEGUN, EXIT_SECONDS, TOLD, ProcessState
from prefect_resilience.guards.timeouts.threads import start_call

logger: logging.Logger = logging.getLogger("prefect_resilience.timeout")

START_SECONDS = 120.0
"""How long a child may take to import Prefect, and to unpickle a call with the user's imports."""

IDLE_SECONDS = 300.0
"""How long children wait for the next call before they exit."""

MOST_CALLS = 1_000
"""A child that has made this many calls is replaced, which bounds its leaks."""

DEATH_SECONDS = 10.0
"""How long to wait for the end of a killed child. Only a system call can delay it, as to a dead disk."""

SPARE = 1
"""Children that are ready while no call waits."""

MOST_STARTING = os.cpu_count() or 1
MOST_IDLE = max(4, 2 * MOST_STARTING)

HUNG_UP = (EOFError, OSError, pickle.UnpicklingError)

PROGRAM = "from prefect_resilience.guards.timeouts.child import main; main()"


class ProcessDied(ResilienceError):
    """The child process of a call died before it returned a result.

    `exit_code` is the exit code of the process; if it is negative, it is the number of the killing signal.

    Example:
        >>> print(ProcessDied("'ocr'", 3))
        the child process of 'ocr' ended with exit code 3 before it returned a result
    """

    def __init__(self, what: str, exit_code: int | None = None) -> None:
        self.what = what
        self.exit_code = exit_code
        super().__init__(f"the child process of {what} {_ending(exit_code)} before it returned a result")


class Child:
    """A child process, which makes one call at a time. See `child.py` for the messages."""

    def __init__(self, modules: list[str]) -> None:
        places = [place for place in sys.path if type(place) is str]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(places)}
        ours, theirs = Pipe()
        self.channel: Connection[Any, Any] = ours
        with theirs:
            self.process: subprocess.Popen[bytes] = subprocess.Popen(
                [sys.executable, "-P", "-c", PROGRAM, str(theirs.fileno())],
                stdin=subprocess.DEVNULL,
                pass_fds=(theirs.fileno(),),
                env=environment,
                start_new_session=True,
            )
        self.calls: int = 0
        self._buried = False
        with suppress(OSError):  # it died; `receive` will notice
            self.channel.send((places, modules))

    def receive(self) -> Any:
        """The first message of the child after its start, or about a call, before which it may import much.

        Raises EOFError or OSError if the child dies first. If it takes too long, it is killed.
        """
        if not self.channel.poll(START_SECONDS):
            self.kill()
        return self.channel.recv()

    def ask(
        self,
        what: str,
        payload: bytes,
        begin: Callable[[list[str]], bool],
        heard: Callable[[Any], None] | None,
    ) -> tuple[str, Any]:
        """Let the child make a call; returns its last message about it.

        When the child has unpickled the call, `begin` gets the modules imported since the last call, and
        returns whether to go on. Raises EOFError, OSError or UnpicklingError if the child dies.
        """
        self.calls += 1
        self.channel.send((self.calls, what, ProcessState.here(), payload))
        kind, *rest = self.receive()
        while True:
            if kind == BEGUN:
                self.channel.send(begin(rest[0]))
            elif kind != TOLD:
                return kind, rest[0]
            elif heard is not None and rest[0] == self.calls:
                heard(rest[1])
            kind, *rest = self.channel.recv()

    def kill(self) -> None:
        """Kill the child and all processes in its process group."""
        if self._buried:  # its id may belong to another process by now
            return
        with suppress(OSError):
            os.killpg(self.process.pid, signal.SIGKILL)
        self.process.kill()

    def end(self, seconds: float = EXIT_SECONDS) -> int | None:
        """Let an idle or exiting child exit, then kill the child and the processes it started if any are
        left. Returns its exit code."""
        self.channel.close()
        with suppress(subprocess.TimeoutExpired):
            self.process.wait(seconds)
        self.kill()
        self._buried = True
        try:
            self.process.wait(DEATH_SECONDS)
        except subprocess.TimeoutExpired:
            logger.warning("the child process %d was killed but has not ended", self.process.pid)
        return self.process.returncode


class Pool:
    """The children of this process. Each call has a child of its own; it waits only while children start.

    Children are started on demand, at most one per processor at the same time. The first free child takes the
    next call.
    """

    def __init__(self, idle_seconds: float = IDLE_SECONDS, spare: int = SPARE) -> None:
        self.idle_seconds = idle_seconds
        self.spare = spare
        self.forget()

    def forget(self) -> None:
        """Begin without children. A forked process must not use those of its parent."""
        self._changed = threading.Condition()
        self._idle: list[Child] = []
        self.living: set[Child] = set()
        self._modules: dict[str, None] = {}
        """The modules that earlier children imported for calls; the next child imports them ahead."""
        self._failures: list[int | OSError | None] = []
        self.starting: int = 0
        self._waiting = 0
        self._keeping = self._closed = False
        self._used = 0.0

    @property
    def ready(self) -> int:
        """How many children are ready for a call."""
        return len(self._idle)

    def take(self, what: str, seconds: float, deadline: float) -> Child:
        """A child that is ready. `deadline`: on the monotonic clock, for a call with a timeout of `seconds`.

        Raises AttemptTimeout, ProcessDied if a child dies at its start, OSError if none can be started.
        """
        with self._changed:
            self._waiting += 1
            try:
                while (child := self._living_idle()) is None:
                    if self._failures:
                        failure = self._failures.pop()
                        raise failure if isinstance(failure, OSError) else ProcessDied(what, failure)
                    self._start_missing()
                    remaining = deadline - time.monotonic()
                    if remaining <= 0:
                        raise overdue(seconds, f"the start of the child process of {what}")
                    self._changed.wait(min(remaining, SLICE_SECONDS))
            finally:
                self._waiting -= 1
                if not self._waiting:
                    self._failures.clear()
            self._used = time.monotonic()
            self._start_missing()
            return child

    def give_back(self, child: Child) -> None:
        """Return a child that has answered to the pool."""
        with self._changed:
            if len(self._idle) < MOST_IDLE and child.calls < MOST_CALLS:
                self._have(child)
                return
        self.end(child)

    def end(self, child: Child) -> int | None:
        """Let the child exit, if it has not yet. Returns its exit code."""
        self.living.discard(child)
        return child.end()

    def learn(self, modules: list[str]) -> None:
        self._modules.update(dict.fromkeys(modules))

    def close(self) -> None:
        """End all children: idle ones cleanly, the others at once."""
        with self._changed:
            idle = self._idle
            self._idle, self._closed = [], True
            living = list(self.living)
        for child in living:
            child.channel.close() if child in idle else child.kill()
        deadline = time.monotonic() + EXIT_SECONDS
        for child in living:
            child.end(max(0.0, deadline - time.monotonic()))

    def _living_idle(self) -> Child | None:
        while self._idle:
            child = self._idle.pop()
            if child.process.poll() is None:
                return child
            self.end(child)
        return None

    def _start_missing(self) -> None:
        missing = (self._waiting or self.spare) - len(self._idle) - self.starting - len(self._failures)
        for _ in range(min(missing, MOST_STARTING - self.starting)):
            self.starting += 1
            Context().run(start_call, self._start)  # an empty context, which keeps no data of the call

    def _start(self) -> None:
        failure: int | OSError | None = None
        child: Child | None = None
        try:
            child = Child(list(self._modules))
            self.living.add(child)
            if self._closed:
                child.kill()
            child.receive()
        except HUNG_UP as error:
            failure = error if child is None and isinstance(error, OSError) else None
            if child is not None:
                failure, child = self.end(child), None
        with self._changed:
            self.starting -= 1
            if child is not None:
                self._have(child)
            elif self._waiting:
                self._failures.append(failure)
            if self._waiting:
                self._start_missing()

    def _have(self, child: Child) -> None:
        self._idle.append(child)
        self._used = time.monotonic()
        self._changed.notify()
        if not self._keeping:
            self._keeping = True
            Context().run(start_call, self._keep)

    def _keep(self) -> None:
        """End the idle children once none has been used for `idle_seconds`."""
        while (remaining := self._used + self.idle_seconds - time.monotonic()) > 0:
            time.sleep(remaining)
        with self._changed:
            idle, self._idle = self._idle, []
            self._keeping = False
        for child in idle:
            self.end(child)


POOL = Pool()
at_exit(POOL.close)


@in_forked_child
def _forget() -> None:  # pyright: ignore[reportUnusedFunction]
    """In a fork, close the copies of the channels, so that the children notice the end of their parent."""
    for child in POOL.living:
        child.channel.close()
    POOL.forget()


def _ending(exit_code: int | None) -> str:
    if exit_code is None:
        return "stopped answering"
    if exit_code >= 0:
        return f"ended with exit code {exit_code}"
    try:
        return f"was killed by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"was killed by signal {-exit_code}"
