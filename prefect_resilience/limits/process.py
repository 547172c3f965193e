"""A call in a child process that is killed at the deadline: the way to make the work itself stop."""

from __future__ import annotations

import json
import os
import pickle
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from queue import Empty, SimpleQueue
from time import monotonic
from typing import Any, TypeVar, cast

import anyio
import anyio.to_thread
import cloudpickle  # pyright: ignore[reportMissingTypeStubs]

from prefect_resilience.errors.exceptions import AttemptTimeout, ResilienceError
from prefect_resilience.limits import child as child_side
from prefect_resilience.limits.threads import SLICE_SECONDS, logger, name_of, start_call

T = TypeVar("T")

Wrap = Callable[[Callable[[], Any]], Any]
"""Runs in the child around the call: `wrap(call)` returns what the call returned."""

START_SECONDS = 120.0
"""How long a child may take until the function starts: interpreter, arguments, and the user's imports."""

EXIT_SECONDS = 3.0
"""How long a child may take to exit once its result is here; then it is killed, and the result stands."""


DEATH_SECONDS = 10.0
"""How long a killed child is waited for. Only a system call can hold it, to a dead network disk say."""


class ProcessDied(ResilienceError):
    """The child process of a call died before it had an answer.

    `exit_code` is that of the process: negative is the number of the signal that killed it.

    Example:
        >>> print(ProcessDied("'ocr'", 3))
        the child process of 'ocr' ended with exit code 3 before it had an answer
    """

    def __init__(self, what: str, exit_code: int | None = None) -> None:
        self.what = what
        self.exit_code = exit_code
        super().__init__(f"the child process of {what} {_ending(exit_code)} before it had an answer")

    def __reduce__(self) -> tuple[type[ProcessDied], tuple[str, int | None]]:
        return type(self), (self.what, self.exit_code)


class UnpicklableError(ResilienceError, TypeError):
    """Arguments, a result or an exception could not be pickled on the way to or from a child process.

    Example:
        >>> issubclass(UnpicklableError, TypeError)
        True
    """


def call_in_process(
    fn: Callable[..., T],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    seconds: float,
    *,
    wrap: Wrap | None = None,
    what: str | None = None,
) -> T:
    """What `fn(*args, **kwargs)` returns in a child process, if it does so within `seconds`.

    The clock runs from the moment the function starts in the child until its result is here; starting may
    take `START_SECONDS` more. An async function is run with `asyncio.run`. The child has this process's
    `sys.path`, `sys.argv`, working directory, environment, standard output and standard error (on Windows
    its output goes to standard error), and nothing to read from standard input. Functions and classes of
    `__main__` travel by value. An exception keeps its type, its causes and what of its attributes can be
    pickled; its traceback is in a note. At the deadline, and when this thread is interrupted, the child is
    killed with all it started (on Windows, it alone), except what moved to a session of its own. When this
    process dies, the child ends itself, once its code lets go of the GIL.

    Raises `AttemptTimeout`, `ProcessDied`, `UnpicklableError`, and whatever `fn` raises.
    """
    return _Child(fn, args, kwargs, wrap, what or name_of(fn)).run(seconds)


async def acall_in_process(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: Mapping[str, Any],
    seconds: float,
    *,
    wrap: Wrap | None = None,
    what: str | None = None,
) -> Any:
    """`call_in_process` for the event loop: waits in a thread, and kills the child when it is cancelled."""
    child = _Child(fn, args, kwargs, wrap, what or name_of(fn))
    try:
        return await anyio.to_thread.run_sync(
            child.run, seconds, abandon_on_cancel=True, limiter=anyio.CapacityLimiter(1)
        )
    finally:
        child.stop()


class _Child:
    """One child process, from its start to its end."""

    def __init__(
        self,
        fn: Callable[..., Any],
        args: Sequence[Any],
        kwargs: Mapping[str, Any],
        wrap: Wrap | None,
        what: str,
    ) -> None:
        self.what = what
        self.payload = _dumps((fn, tuple(args), dict(kwargs), wrap), what)
        self.process: subprocess.Popen[bytes] | None = None
        self.stopped = False
        self.hung_up = threading.Event()

    def run(self, seconds: float) -> Any:
        messages: SimpleQueue[bytes | None] = SimpleQueue()
        try:
            self.process = _start()
            if self.stopped:
                raise AttemptTimeout(seconds, self.what)
            start_call(self._converse, self.process, messages)
            message = self._next(messages, START_SECONDS, f"the start of the child process of {self.what}")
            if message == child_side.STARTED:
                message = self._next(messages, seconds, self.what)
            return self._answer(message)
        finally:
            self._bury()

    def stop(self) -> None:
        """Kill the child, from any thread, if it is there."""
        self.stopped = True
        if self.process is not None:
            _kill(self.process)

    def _converse(self, process: subprocess.Popen[bytes], messages: SimpleQueue[bytes | None]) -> None:
        """On a thread beside the waiting one: write the call, then read messages until the child hangs up."""
        try:
            assert process.stdin is not None
            assert process.stdout is not None
            places = {"path": [place for place in sys.path if type(place) is str], "argv": sys.argv}
            with suppress(OSError):  # a child that died while it read says so on the other pipe
                child_side.write_frame(process.stdin.fileno(), json.dumps(places).encode())
                child_side.write_frame(process.stdin.fileno(), self.payload)
            self.payload = b""
            while (message := child_side.read_frame(process.stdout.fileno())) is not None:
                messages.put(message)
        finally:
            messages.put(None)
            self.hung_up.set()

    def _next(self, messages: SimpleQueue[bytes | None], seconds: float, what: str) -> bytes | None:
        """The child's next message, or None when it has hung up. Raises `AttemptTimeout`."""
        deadline = monotonic() + seconds
        while (left := deadline - monotonic()) > 0:
            with suppress(Empty):
                return messages.get(timeout=min(left, SLICE_SECONDS))
        raise AttemptTimeout(seconds, what)

    def _answer(self, message: bytes | None) -> Any:
        process = self.process
        assert process is not None
        if message is None:
            with suppress(subprocess.TimeoutExpired):
                process.wait(EXIT_SECONDS)
            _kill_group(process.pid)  # what a dead child had started
            raise ProcessDied(self.what, process.returncode)
        with suppress(subprocess.TimeoutExpired):
            process.wait(EXIT_SECONDS)
        kind, body = message[:1], message[1:]
        if kind == child_side.UNPICKLABLE:
            brief, _, text = body.decode(errors="replace").partition("\n")
            raise _noted(UnpicklableError(f"{brief}: {_ADVICE}"), text)
        value = _loads(body, self.what)
        if kind == child_side.RESULT:
            return value
        flat, text = value
        raise _noted(_unflatten(flat, self.what), f"Raised in the child process of {self.what}:\n{text}")

    def _bury(self) -> None:
        """See that the process is dead and waited for, and close the pipes."""
        process = self.process
        if process is None:
            return
        _kill(process)
        try:
            process.wait(DEATH_SECONDS)
        except subprocess.TimeoutExpired:
            logger.warning("the child process %d of %s was killed and has not ended", process.pid, self.what)
            return
        if self.hung_up.wait(1.0):  # else a stray copy of the pipe is open somewhere, and is still read
            for pipe in (process.stdin, process.stdout):
                if pipe is not None:
                    pipe.close()


_ADVICE = 'hand over plain data, or write mode="thread"'


def _start() -> subprocess.Popen[bytes]:
    """Start a Python that speaks `limits.child` on its standard input and output.

    Multiprocessing is no help here: its `spawn` imports the user's `__main__` again, and its `fork` copies
    locks that other threads hold.
    """
    windows = sys.platform == "win32"
    stdout = -1
    if not windows:
        with suppress(OSError):
            stdout = os.dup(1)
    script = str(Path(child_side.__file__).resolve())
    try:
        return subprocess.Popen(
            [sys.executable, script, str(stdout)],
            bufsize=0,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            pass_fds=(stdout,) if stdout >= 0 else (),
            start_new_session=not windows,
            creationflags=getattr(subprocess, "CREATE_NEW_PROCESS_GROUP", 0),  # no Ctrl-C of ours
        )
    finally:
        if stdout >= 0:
            os.close(stdout)


def _kill(process: subprocess.Popen[bytes]) -> None:
    if process.returncode is not None:
        return
    _kill_group(process.pid)
    with suppress(OSError):
        process.kill()


def _kill_group(pid: int) -> None:
    """Kill a process and all it started, as far as they are in its group."""
    if sys.platform != "win32":
        with suppress(OSError):
            os.killpg(pid, signal.SIGKILL)


_cloudpickled = cast("Callable[[Any], bytes]", cloudpickle.dumps)  # pyright: ignore[reportUnknownMemberType]


def _dumps(call: tuple[Any, ...], what: str) -> bytes:
    try:
        return _cloudpickled(call)
    except Exception as error:
        raise UnpicklableError(
            f"the call of {what} cannot be sent to a child process ({error}): {_ADVICE}"
        ) from error


def _loads(body: bytes, what: str) -> Any:
    try:
        return pickle.loads(body)
    except Exception as error:
        raise UnpicklableError(f"what {what} gave back cannot be read here ({error}): {_ADVICE}") from error


def _unflatten(flat: dict[str, Any], what: str) -> BaseException:
    try:
        return child_side.unflatten(flat)
    except Exception as error:
        raise UnpicklableError(f"what {what} raised cannot be read here ({error}): {_ADVICE}") from error


def _noted(error: BaseException, note: str) -> BaseException:
    """The error with a PEP 678 note, written by hand because Python 3.10 has no `add_note`."""
    if note:
        vars(error).setdefault("__notes__", []).append(note)
    return error


def _ending(exit_code: int | None) -> str:
    if exit_code is None:
        return "stopped answering"
    if exit_code >= 0:
        return f"ended with exit code {exit_code}"
    try:
        return f"was killed by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"was killed by signal {-exit_code}"
