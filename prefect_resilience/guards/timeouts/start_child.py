"""The script that a child process of `mode="process"` runs; see `child.py`.

Until it knows the parent's module search path it can import the standard library only.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
from collections.abc import Generator
from contextlib import contextmanager, suppress
from importlib import import_module
from typing import BinaryIO

if sys.platform == "linux":
    import fcntl


def _move_pipes(stdout: int) -> tuple[BinaryIO, BinaryIO]:
    """Move the two pipes to other file descriptors; the user's code gets the parent's standard output."""
    pipes = os.dup(0), os.dup(1)
    nothing = os.open(os.devnull, os.O_RDWR)
    os.dup2(nothing, 0)
    try:
        os.dup2(stdout if stdout >= 0 else 2, 1)
    except OSError:  # a parent without output, such as a daemon
        os.dup2(nothing, 1)
    if stdout >= 0:
        os.close(stdout)
    with suppress(AttributeError):  # a stream may be None
        sys.stdout.reconfigure(line_buffering=True)  # pyright: ignore # lines must survive a kill
    if hasattr(os, "register_at_fork"):
        # If a forked grandchild held the pipes, the parent would not notice the death of this process.
        os.register_at_fork(after_in_child=lambda: [os.dup2(nothing, pipe, False) for pipe in pipes])
    return os.fdopen(pipes[0], "rb"), os.fdopen(pipes[1], "wb")


@contextmanager
def kill_at_hangup(pipe: BinaryIO) -> Generator[None, None, None]:
    """Let the kernel kill this process group as soon as the other side closes the pipe. Linux only.

    A thread that reads the pipe could do so as well, unless C code keeps the GIL. Nothing may be written to
    the pipe meanwhile.
    """
    if sys.platform != "linux" or os.getpgrp() != os.getpid():
        yield
        return
    flags = fcntl.fcntl(pipe, fcntl.F_GETFL)
    fcntl.fcntl(pipe, fcntl.F_SETOWN, -os.getpgrp())
    fcntl.fcntl(pipe, fcntl.F_SETSIG, signal.SIGKILL)
    fcntl.fcntl(pipe, fcntl.F_SETFL, flags | os.O_ASYNC)
    try:
        yield
    finally:
        fcntl.fcntl(pipe, fcntl.F_SETFL, flags)


def _import(modules: list[str]) -> None:
    for name in modules:
        with suppress(BaseException):  # the call that needs the module will report the error
            import_module(name)


def main() -> None:
    calls, channel = _move_pipes(int(sys.argv[1]))
    sys.path[:], names = pickle.load(calls)
    with kill_at_hangup(calls):
        from prefect_resilience.guards.timeouts.child import Server, prepare

        _import(names)
        prepare()
    Server(calls, channel).serve()


if __name__ == "__main__":
    main()
