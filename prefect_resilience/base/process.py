"""The state of a process: made once, made again in a forked child, ended at exit, run in threads.

A forked child has the memory of its parent but only the thread that forked. A lock that another thread held
stays locked in the child, and a queue that a thread emptied fills up. Task runners, worker pools and tests
fork, so every lock, thread and buffer of a module is declared with one of these functions.
"""

from __future__ import annotations

import atexit
import os
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import Context, ContextVar
from typing import Any, TypeVar

T = TypeVar("T")
Action = TypeVar("Action", bound="Callable[[], Any]")


def per_process(make: Callable[[], T]) -> T:
    """Make an object that each process has once. A forked child calls its `__init__` again."""
    instance = make()
    in_forked_child(instance.__init__)
    return instance


def in_forked_child(action: Action) -> Action:
    """Call `action` in every process that is forked from this one. Systems without fork never call it."""
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=action)
    return action


def user_of_host() -> str:
    """The user of this process and the host, as in "ana@worker-1"."""
    import getpass
    import socket

    try:
        return f"{getpass.getuser()}@{socket.gethostname()}"
    except (KeyError, OSError):  # a container's user may have no name
        return f"unknown@{socket.gethostname()}"


def at_exit(action: Action) -> Action:
    """Call `action` when the process ends normally; the action registered last is called first."""
    atexit.register(action)
    return action


def start_thread(
    name: str, work: Callable[..., Any], *args: Any, context: Context | None = None, daemon: bool = True
) -> threading.Thread:
    """Run `work(*args)` in a thread: in `context`, such as `copy_context()`, or in an empty one.

    With `daemon=False`, the process waits for the thread before it ends.
    """
    run = (context or Context()).run
    name = f"prefect-resilience-{name}"
    thread = threading.Thread(target=run, args=(work, *args), name=name, daemon=daemon)
    thread.start()
    return thread


@contextmanager
def setting(variable: ContextVar[T], value: T) -> Generator[None]:
    """Set `variable` to this value within the block."""
    token = variable.set(value)
    try:
        yield
    finally:
        variable.reset(token)
