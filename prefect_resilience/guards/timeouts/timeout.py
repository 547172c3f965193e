"""`Timeout`: how long one attempt may take, and the helpers that hold a call to it."""

from __future__ import annotations

import difflib
import functools
import inspect
import os
import signal
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import timedelta
from types import FrameType
from typing import Any, ClassVar, Literal, TypeVar, cast

import anyio
from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from prefect_resilience.base.durations import DEFAULT_OPERATIONS, Duration, seconds_of
from prefect_resilience.errors.exceptions import AttemptTimeout, ConfigurationError
from prefect_resilience.guards.timeouts.stream import aiterate_with_deadline, iterate_with_deadline
from prefect_resilience.guards.timeouts.threads import call_with_deadline, name_of, overdue_calls

__all__ = [
    "Timeout",
    "acall_with_deadline",
    "aiterate_with_deadline",
    "call_with_deadline",
    "call_within",
    "iterate_with_deadline",
    "overdue_calls",
]

# A call with a deadline on the main thread itself, ended by the system's interval timer.
#
# Handing a call to another thread costs most of a millisecond while Prefect's event thread is busy, since
# each hand-over waits for the interpreter's lock. On the main thread the timer's signal interrupts the call
# where it stands, a blocking system call included, and costs a few microseconds.

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


async def acall_with_deadline(
    awaitable_factory: Callable[[], Awaitable[T]], seconds: float, *, what: str = "the attempt"
) -> T:
    """What the awaitable gives, if it does so within `seconds`; else it is cancelled.

    The awaitable runs in the calling task. Cancelling works at its next `await`, and again at each one
    after it while the code goes on, so code that blocks the event loop, or shields itself, or catches the
    cancellation for good, ends late by just that long. If such code returns a value after the deadline,
    the value is handed on: the work was done. A `TimeoutError` of the code's own, and a cancellation from
    outside, pass through as they are.

    Raises `AttemptTimeout`, and whatever the awaitable raises.
    """
    with anyio.move_on_after(seconds) as scope:
        return await awaitable_factory()
    # The scope swallows nothing but its own cancellation, so this is the deadline.
    assert scope.cancelled_caught
    raise AttemptTimeout(seconds, what)


T = TypeVar("T")
Mode = Literal["auto", "thread", "process"]
_FIELDS = ("total", "idle", "mode", "timeout_ms")


class Timeout(BaseModel):
    """How long one attempt may take, in seconds (or text such as "500ms", "1h30m", or a timedelta).

    `total` bounds the attempt. `idle`, for generators, bounds the wait for each chunk; with a generator,
    `total` counts only the time spent waiting for it, not what the consumer does between two chunks.

    An async call that is overdue is cancelled. What happens to a sync one is the `mode`'s business: "auto"
    (the default) interrupts it where it stands if it runs on the main thread, and else does as "thread",
    which ends the waiting at once, whatever the call is blocked in, and lets the call go on beside it.
    "process" runs the call in a child process and kills that. Write "thread" for a call on the main thread
    that blocks in C code which does not heed signals, such as some database drivers.

        Timeout(30)   Timeout(30, mode="process")   Timeout(total=30, idle=5)

    JSON may say `timeout_ms` in place of `total`. Raises `ConfigurationError`; when read as part of a
    larger model, pydantic's `ValidationError` with the same sentence.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, extra="forbid", defer_build=True)

    total: float | None = Field(
        default=None, gt=0, allow_inf_nan=False, description="Seconds that one attempt may take."
    )
    idle: float | None = Field(
        default=None, gt=0, allow_inf_nan=False, description="Seconds that a generator's next chunk may take."
    )
    mode: Mode = Field(
        default="auto",
        description="Whether an overdue call is interrupted, left behind, or killed with its process.",
    )

    def __init__(self, total: Duration | None = None, idle: Duration | None = None, **fields: Any) -> None:
        given = {"total": total, "idle": idle}
        fields |= {name: seconds for name, seconds in given.items() if seconds is not None}
        try:
            super().__init__(**fields)
        except ValidationError as error:
            raise ConfigurationError(_sentence(error)) from None

    @model_validator(mode="before")
    @classmethod
    def _read(cls, data: Any) -> Any:
        if isinstance(data, (int, float, str, timedelta)):
            data = {"total": data}
        if not isinstance(data, Mapping):
            return data
        fields = dict(cast("Mapping[str, Any]", data))
        for name in fields:
            if name not in _FIELDS:
                raise ValueError(
                    f"a timeout has no {name!r}: write {', '.join(_FIELDS[:-1])} or {_FIELDS[-1]}"
                )
        if fields.get("timeout_ms") is not None:
            if fields.get("total") is not None:
                raise ValueError("a timeout was given both total and timeout_ms: write one of them")
            fields["total"] = _seconds("timeout_ms", fields["timeout_ms"]) / 1000
        fields.pop("timeout_ms", None)
        for name in ("total", "idle"):
            if fields.get(name) is not None:
                fields[name] = _seconds(name, fields[name])
        if fields.get("total") is None and fields.get("idle") is None:
            raise ValueError("a timeout needs a number of seconds: write Timeout(30) or Timeout(idle=5)")
        if fields.get("mode", "auto") not in ("auto", "thread", "process"):
            raise ValueError(f'a timeout\'s mode is "auto", "thread" or "process", not {fields["mode"]!r}')
        return fields

    @classmethod
    def of(cls, value: Any, operations: Mapping[str, float] = DEFAULT_OPERATIONS) -> Timeout | None:
        """The timeout that `value` means: None, a duration, an operation's name, JSON, a Timeout.

        Raises `ConfigurationError` when it means none; for an unknown name the nearest one is named.

        Example:
            >>> Timeout.of("llm-call").total, Timeout.of({"timeout_ms": 500}).total
            (60.0, 0.5)
        """
        if value is None or isinstance(value, Timeout):
            return value
        if isinstance(value, str):
            return cls(_operation(value, operations) if seconds_of(value) is None else value)
        if isinstance(value, (int, float, timedelta)):
            return cls(value)
        if isinstance(value, Mapping):
            return cls(**{str(name): given for name, given in cast("Mapping[Any, Any]", value).items()})
        raise ConfigurationError(
            f"a timeout cannot be a {type(value).__name__}: write seconds, an operation or Timeout(...)"
        )

    def check_for(self, fn: Callable[..., Any]) -> None:
        """Raises `ConfigurationError` when this timeout cannot be kept for `fn`."""
        name = getattr(fn, "__name__", None) or type(fn).__name__
        streams = _is_generator_function(fn)
        if self.idle is not None and not streams:
            raise ConfigurationError(
                f"{name} is no generator, so idle={self.idle:g} bounds nothing: write Timeout(total=...)"
            )
        if self.mode == "process" and streams:
            raise ConfigurationError(
                f'{name} is a generator, which cannot run with mode="process": write mode="thread", or '
                "return a list"
            )


def call_within(timeout: Timeout, fn: Callable[..., T], args: Sequence[Any], kwargs: Mapping[str, Any]) -> T:
    """What `fn(*args, **kwargs)` returns within `timeout.total` seconds; raises AttemptTimeout.

    Not for `mode="process"`.
    """
    seconds = cast(float, timeout.total)
    if timeout.mode == "auto" and alarm_is_free():
        return call_with_alarm(fn, args, kwargs, seconds)
    return call_with_deadline(fn, args, kwargs, seconds)


def _seconds(name: str, value: Any) -> float:
    unit = "milliseconds" if name == "timeout_ms" else "seconds"
    known = seconds_of(value)
    if known is not None and name == "timeout_ms" and not isinstance(value, int | float):
        known *= 1000
    if known is None and (isinstance(value, bool) or not isinstance(value, int | float)):
        also = "" if name == "timeout_ms" else ', or text such as "500ms", "1h30m"'
        raise ValueError(f"a timeout's {name} is a number of {unit} such as 30{also}, not {value!r}")
    if known is None or known <= 0:
        raise ValueError(
            f"a timeout's {name} is a number of {unit} above 0, not {value!r}: no limit is timeout=None"
        )
    return known


def _operation(name: str, operations: Mapping[str, float]) -> float:
    if name in operations:
        return operations[name]
    near = difflib.get_close_matches(name, operations, n=1, cutoff=0.4)
    hint = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(sorted(operations))}"
    raise ConfigurationError(
        f'no operation is named {name!r}, so it has no timeout: {hint}, or write a duration such as "30s"'
    )


def _sentence(error: ValidationError) -> str:
    first = error.errors(include_url=False)[0]
    return str(first.get("ctx", {}).get("error") or first["msg"])


def _is_generator_function(fn: Callable[..., Any]) -> bool:
    while isinstance(fn, functools.partial):
        fn = cast("Callable[..., Any]", fn.func)
    made_by = (fn, getattr(fn, "__call__", None))  # noqa: B004 the method is what is looked at
    return any(inspect.isgeneratorfunction(one) or inspect.isasyncgenfunction(one) for one in made_by)
