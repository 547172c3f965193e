"""The child's side of `mode="process"`, and what both sides say to each other.

`limits.process` runs this file as a script and speaks to it over two pipes. It imports the standard
library only, and cloudpickle when it must pickle, so that a child whose function needs neither Prefect
nor this package starts in a tenth of a second.

Down the child's standard input, which stays open as its lifeline: the places to import from, then the
pickled call. Up its standard output: `started`, then `result`, `error` or `unpicklable`.
"""

from __future__ import annotations

import asyncio
import inspect
import json
import os
import pickle
import signal
import sys
import threading
import traceback
from collections.abc import Callable
from contextlib import suppress
from typing import Any

STARTED, RESULT, ERROR, UNPICKLABLE = b"s", b"r", b"e", b"u"

_CAUSES = 10
"""How far down a chain of causes is carried."""


def main() -> None:
    """The child's life: take the call, make it, send back what became of it."""
    lifeline, channel = _settle(int(sys.argv[1]))
    places = read_frame(lifeline)
    payload = read_frame(lifeline)
    if places is None or payload is None:
        sys.exit(1)
    for name, value in json.loads(places).items():
        getattr(sys, name)[:] = value  # path, argv
    threading.Thread(target=_end_with_parent, args=(lifeline,), daemon=True).start()
    kind, body = _carry_out(payload, channel)
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    with suppress(OSError):  # nobody is left to hear it
        write_frame(channel, kind + body)


def read_frame(fd: int) -> bytes | None:
    """The next message on the pipe, or None when the other side has hung up."""
    size = _read(fd, 8)
    return None if size is None else _read(fd, int.from_bytes(size, "big"))


def write_frame(fd: int, body: bytes) -> None:
    """Send a message. Raises `OSError` when the other side has hung up."""
    for part in (len(body).to_bytes(8, "big"), body):
        view = memoryview(part)
        while view:
            view = view[os.write(fd, view[: 1 << 20]) :]


def _read(fd: int, size: int) -> bytes | None:
    body = bytearray()
    while len(body) < size:
        part = os.read(fd, min(size - len(body), 1 << 20))
        if not part:
            return None
        body += part
    return bytes(body)


def _settle(stdout: int) -> tuple[int, int]:
    """Move the two pipes out of the way of the user's code, which gets the parent's standard output."""
    lifeline, channel = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    try:
        os.dup2(stdout if stdout >= 0 else 2, 1)
    except OSError:  # a parent without output, such as a daemon
        os.dup2(nothing, 1)
    os.close(nothing)
    if stdout >= 0:
        os.close(stdout)
    with suppress(AttributeError):  # a stream may be None
        sys.stdout.reconfigure(line_buffering=True)  # pyright: ignore # lines must outlive a kill
    if hasattr(os, "register_at_fork"):
        # A forked grandchild that held the pipes would hide the death of this process from the parent.
        os.register_at_fork(after_in_child=lambda: _close(lifeline, channel))
    return lifeline, channel


def _close(*fds: int) -> None:
    for fd in fds:
        with suppress(OSError):
            os.close(fd)


def _end_with_parent(lifeline: int) -> None:
    """Wait until the parent is gone, then end this process and all it started."""
    with suppress(OSError):
        os.read(lifeline, 1)
    if hasattr(os, "killpg") and os.getpgrp() == os.getpid():
        os.killpg(0, signal.SIGKILL)
    os._exit(1)


def _carry_out(payload: bytes, channel: int) -> tuple[bytes, bytes]:
    name = "the function"
    try:
        fn, args, kwargs, wrap = pickle.loads(payload)
        name = getattr(fn, "__name__", None) or type(fn).__name__

        def call() -> Any:
            write_frame(channel, STARTED)  # the clock begins here, not with what the wrapping needs
            return _call(fn, args, kwargs)

        value = call() if wrap is None else wrap(call)
    except BaseException as error:  # noqa: BLE001 it is raised again in the parent
        return _pack_error(error, name)
    try:
        return RESULT, _dumps(value)
    except Exception as error:  # noqa: BLE001 whatever a __reduce__ raises
        brief = f"the {type(value).__name__} that {name!r} returned cannot leave its process ({error})"
        return UNPICKLABLE, brief.encode(errors="replace")


def _call(fn: Callable[..., Any], args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    outcome = fn(*args, **kwargs)
    if not inspect.isawaitable(outcome):
        return outcome

    async def finish() -> Any:
        return await outcome

    return asyncio.run(finish())


def _dumps(value: Any) -> bytes:
    import cloudpickle  # pyright: ignore[reportMissingTypeStubs]

    return cloudpickle.dumps(value)  # pyright: ignore[reportUnknownMemberType]


def _pack_error(error: BaseException, name: str) -> tuple[bytes, bytes]:
    trace = error.__traceback__
    while trace and trace.tb_frame.f_code.co_filename == __file__:
        trace = trace.tb_next  # the frames of this file tell the reader nothing
    text = "".join(traceback.format_exception(type(error), error, trace)).rstrip()
    try:
        return ERROR, pickle.dumps((_flatten(error, _CAUSES), text))
    except Exception as reason:  # noqa: BLE001 whatever a __reduce__ raises
        brief = f"the {type(error).__name__} that {name!r} raised cannot leave its process ({reason})"
        return UNPICKLABLE, f"{brief}\n{text}".encode(errors="replace")


def _flatten(error: BaseException, depth: int) -> dict[str, Any]:
    """The error as plain data: pickled whole where that gives the same error back, else in parts."""

    def chained(other: BaseException | None) -> dict[str, Any] | None:
        if other is None or depth == 0:
            return None
        try:
            return _flatten(other, depth - 1)
        except Exception:  # noqa: BLE001 the error itself matters more than its cause
            return None

    return {
        "whole": _whole(error),
        "parts": _parts(error),
        "cause": chained(error.__cause__),
        "context": None if error.__cause__ else chained(error.__context__),
        "suppress": error.__suppress_context__,
    }


def _whole(error: BaseException) -> bytes | None:
    try:
        body = _dumps(error)
        back = pickle.loads(body)
    except Exception:  # noqa: BLE001 many exceptions cannot be made again from their args
        return None
    return body if type(back) is type(error) and str(back) == str(error) else None


def _parts(error: BaseException) -> bytes:
    """Type, args and attributes, without what cannot be pickled. Raises when the type cannot be."""
    attributes = {name: value for name, value in vars(error).items() if _travels(value)}
    args = tuple(value if _travels(value) else repr(value) for value in error.args)
    body = _dumps((type(error), args, attributes))
    rebuild(body)
    return body


def _travels(value: Any) -> bool:
    try:
        pickle.loads(_dumps(value))
    except Exception:  # noqa: BLE001 whatever a __reduce__ raises
        return False
    return True


def rebuild(body: bytes) -> BaseException:
    """An exception from its parts, without its `__init__`, which may want what the parts do not say."""
    error_type, args, attributes = pickle.loads(body)
    error: BaseException = error_type.__new__(error_type, *args)
    error.args = args
    vars(error).update(attributes)
    return error


def unflatten(flat: dict[str, Any]) -> BaseException:
    """The parent's half of `_flatten`. Raises what unpickling raises."""
    error = pickle.loads(flat["whole"]) if flat["whole"] is not None else rebuild(flat["parts"])
    if flat["cause"]:
        error.__cause__ = unflatten(flat["cause"])
    if flat["context"]:
        error.__context__ = unflatten(flat["context"])
    error.__suppress_context__ = flat["suppress"]
    return error


if __name__ == "__main__":
    main()
