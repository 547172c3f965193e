"""A call with a deadline on the main thread itself, ended by the system's interval timer.

Handing a call to another thread costs most of a millisecond while Prefect's event thread is busy, since
each hand-over waits for the interpreter's lock. On the main thread the timer's signal interrupts the call
where it stands, a blocking system call included, and costs a few microseconds.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from types import FrameType
from typing import Any, TypeVar

from prefect_resilience.errors.exceptions import AttemptTimeout
from prefect_resilience.guards.timeouts.threads import name_of

T = TypeVar("T")

AGAIN_SECONDS = 0.2
"""The timer rings again after this time, for code that swallowed the first one."""


class DeadlinePassed(BaseException):
    """Travels up through the overdue call; no Exception, so that no handler takes it for its own."""


_main_thread = threading.main_thread().ident
_running = False
"""Whether a call is under way that the signal is meant for."""


def alarm_is_free() -> bool:
    """Whether this is the main thread, with an interval timer and a signal that nobody else uses."""
    if threading.get_ident() != _main_thread or not hasattr(signal, "setitimer"):
        return False
    if signal.getitimer(signal.ITIMER_REAL)[0] != 0:
        return False
    handler = signal.getsignal(signal.SIGALRM)
    return handler is _ring or handler is signal.SIG_DFL


def call_with_alarm(
    fn: Callable[..., T], args: Sequence[Any], kwargs: Mapping[str, Any], seconds: float
) -> T:
    """What `fn(*args, **kwargs)` returns, if it does so within `seconds`. Only where `alarm_is_free()`.

    At the deadline the call is interrupted: its `finally` blocks run, and `AttemptTimeout` is raised here.
    C code that goes back to waiting after a signal (some database drivers) is interrupted only when it
    comes back to Python. The signal's handler stays in place afterwards, and then does what the system does
    by default.
    """
    global _running
    if signal.getsignal(signal.SIGALRM) is not _ring:
        signal.signal(signal.SIGALRM, _ring)
    _running = True
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN_SECONDS)
        try:
            return fn(*args, **kwargs)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except DeadlinePassed:
        signal.setitimer(signal.ITIMER_REAL, 0)
        raise AttemptTimeout(seconds, name_of(fn)) from None
    finally:
        _running = False


def _ring(number: int, _frame: FrameType | None) -> None:
    if _running:
        raise DeadlinePassed
    # A signal of somebody else's, who counts on its default action.
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)


def _after_fork() -> None:
    """A forked child's main thread is the one that forked, and interval timers are not inherited."""
    global _main_thread, _running
    _main_thread, _running = threading.get_ident(), False


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
