"""A call in a child process that is killed at the deadline, so that the work itself stops."""

from __future__ import annotations

import pickle
import threading
from collections.abc import Callable, Mapping, Sequence
from time import monotonic
from typing import Any, NamedTuple

import anyio
import anyio.to_thread

from prefect_resilience.base.deadlines import carry_deadline, overdue
from prefect_resilience.base.drive import SLICE_SECONDS
from prefect_resilience.errors.exceptions import ResilienceError
from prefect_resilience.errors.secrets.redact import add_note
from prefect_resilience.guards.timeouts.child import RESULT, UNPICKLABLE, as_classified, dumps, unpack_error
from prefect_resilience.guards.timeouts.children import DEATH_SECONDS, HUNG_UP, POOL, Child, ProcessDied
from prefect_resilience.guards.timeouts.threads import name_of, start_call


class Carriage(NamedTuple):
    """The data of the run that goes to the child process, and the callback for reports from the child."""

    wrap: Callable[[Callable[[], Any], Callable[[Any], None]], Any]
    """Pickled. In the child, `wrap(call, tell)` returns the value of `call()`."""
    heard: Callable[[Any], None]
    """Not pickled. Called in a thread of this process with each value passed to `tell`. It may not raise."""


class UnpicklableError(ResilienceError, TypeError):
    """Arguments, a result or an exception could not be pickled on the way to or from a child process.

    Example:
        >>> issubclass(UnpicklableError, TypeError)
        True
    """


class ChildCall:
    """One call of `fn(*args, **kwargs)` in a child process, from when it is made.

    Children are kept and reused, and one spare child is ready; the first call of a process waits for a child
    to start. An async function is run with `asyncio.run`. The child has this process's current `sys.path`,
    `sys.argv`, working directory and environment, its standard output and standard error, and an empty
    standard input. Functions and classes of `__main__`
    are pickled by value. An exception keeps its type, its notes, its causes and the attributes that can be
    pickled; its traceback is in a note. `begun` is called right before the function.

    Raises `UnpicklableError`.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        carriage: Carriage | None = None,
        begun: Callable[[], None] | None = None,
    ) -> None:
        self.since: float = monotonic()
        self.what: str = name_of(fn)
        sent = (carry_deadline(fn), tuple(args), dict(kwargs), carriage and carriage.wrap)
        self.payload: bytes = _pickle(sent, self.what)
        self.heard: Callable[[Any], None] | None = carriage and carriage.heard
        self.begun: Callable[[], None] | None = begun
        self.child: Child | None = None
        self.running: bool = False
        self.over: bool = False
        self.lock: threading.Lock = threading.Lock()
        self.reply: tuple[str, Any] | None = None
        """The child's last message; None if it died."""
        self.exit_code: int | None = None
        self.done: threading.Event = threading.Event()

    async def acall(self, seconds: float) -> Any:
        """As `call`, on the event loop: waits in a thread, and kills the child when it is cancelled."""
        limiter = anyio.CapacityLimiter(1)
        try:
            return await anyio.to_thread.run_sync(self.call, seconds, abandon_on_cancel=True, limiter=limiter)
        finally:
            self.stop()

    def call(self, seconds: float) -> Any:
        """The value of the function, if it returns in time.

        At the deadline, and if this thread is interrupted, the child is killed with all the processes it
        started, except those in a session of their own. A child that has not
        called the function by then goes on with its imports for the next call. When this process dies, the
        child is killed, too.

        Raises `AttemptTimeout`, `ProcessDied`, `UnpicklableError`, `OSError` if no process can be started,
        and any exception of `fn`.
        """
        deadline = self.since + seconds
        self.child = child = POOL.take(self.what, seconds, deadline)
        try:
            start_call(self._converse, child)
            while not self.done.wait(min(max(deadline - monotonic(), 0.0), SLICE_SECONDS)):
                if monotonic() >= deadline and self.stop():
                    raise overdue(seconds, self._overdue())
        except BaseException:
            self.stop()
            raise
        if self.reply is None:
            raise ProcessDied(self.what, self.exit_code)
        return _outcome(*self.reply, self.what)

    def stop(self) -> bool:
        """End the call, from any thread. Returns whether it was still running.

        A child that has not called the function by now goes on with its imports, for the next call.
        """
        with self.lock:
            if self.over:
                return False
            self.over = True
        if self.child is not None and self.running:
            self.child.kill()
        return True

    def _overdue(self) -> str:
        """The part of the call that is overdue, for the message. Waits for the end of a killed child."""
        if not self.running:
            return f"the start of the child process of {self.what}"
        self.done.wait(DEATH_SECONDS)
        return self.what

    def _begin(self, modules: list[str]) -> bool:
        """Called when the child has unpickled the call. Returns whether it may call the function."""
        POOL.learn(modules)
        with self.lock:
            if self.over:
                return False
            self.running = True
            if self.begun is not None:
                self.begun()
        return True

    def _converse(self, child: Child) -> None:
        """On a thread of its own: exchange messages with the child, then return the child to the pool."""
        try:
            self.reply = child.ask(self.what, self.payload, self._begin, self.heard)
        except HUNG_UP:
            self.exit_code = POOL.end(child)
        with self.lock:
            stopped, self.over = self.over, True
        if self.reply is not None and stopped and self.running:  # it was killed just after its answer
            POOL.end(child)
        elif self.reply is not None:
            POOL.give_back(child)
        self.done.set()


_ADVICE = 'pass plain data, or use mode="thread"'


def _pickle(call: tuple[Any, ...], what: str) -> bytes:
    try:
        return dumps(call)
    except Exception as error:
        raise UnpicklableError(
            f"the call of {what} cannot be sent to a child process ({error}): {_ADVICE}"
        ) from error


def _outcome(kind: str, body: Any, what: str) -> Any:
    """The value in the child's last message. Raises the error in it."""
    if kind == UNPICKLABLE:
        brief, text, info, names = body
        unpicklable = UnpicklableError(f"{brief}: {_ADVICE}")
        if info is not None:
            as_classified(unpicklable, info, names)
        if text:
            add_note(unpicklable, text)
        raise unpicklable
    try:
        if kind == RESULT:
            return pickle.loads(body)
        error, text = unpack_error(body[0]), body[1]
    except Exception as reason:
        came = f"value that {what} returned" if kind == RESULT else f"exception that {what} raised"
        raise UnpicklableError(f"the {came} cannot be unpickled here ({reason}): {_ADVICE}") from reason
    add_note(error, f"Raised in the child process of {what}:\n{text}")
    try:
        raise error
    finally:
        del error  # its traceback has this frame: a name in it would keep both until the next collection
