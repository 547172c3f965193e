"""`Timeout`: how long one attempt may take, and the helpers that enforce it."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from datetime import timedelta
from functools import partial
from types import FrameType
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeVar, cast

from pydantic import Field, field_validator, model_validator

from prefect_resilience.base.deadlines import current_deadline, overdue
from prefect_resilience.base.durations import DEFAULT_OPERATIONS, FORMS, LONGEST, Duration, seconds_of
from prefect_resilience.base.outcomes import PLAIN, generates, last
from prefect_resilience.base.policy import Policy, nearest
from prefect_resilience.base.process import per_process
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.guards.timeouts.threads import call_with_deadline, name_of

# A call with a deadline on the main thread itself, ended by the system's interval timer.
#
# Another thread for a call costs most of a millisecond while Prefect's event thread is busy, since each
# hand-over waits for the GIL. On the main thread the timer's signal interrupts the call, also in a blocking
# system call, and costs a few microseconds.

AGAIN_SECONDS = 0.2
"""The timer fires again after this time, for code that swallowed the first exception."""
SOON, MOST_DELAYS = 0.001, 100
LOCKING = ("enter", "exit", "acquire", "release", "on_alarm")
"""How functions begin that acquire or release a lock, as in `logging`, `queue` and `threading`, and the
handler of the signal, which may have interrupted one of them. An exception in one of them could leave the
lock acquired for ever, so the call is interrupted SOON after it. It is delayed at most MOST_DELAYS times,
because the function may itself be what blocks."""


class DeadlinePassed(BaseException):
    """Raised in the overdue call. A BaseException, so that no `except Exception` catches it."""


class _Alarm:
    """Whether the signal is for a call that is running, and the thread that can be interrupted."""

    def __init__(self) -> None:
        self.is_set = False
        self.delays = 0
        self.thread = threading.main_thread().ident


_alarm = per_process(_Alarm)


def take_alarm() -> bool:
    """Whether this is the main thread, with an interval timer and a signal that no other code uses.

    The signal then has our handler, which stays. Without a call it applies the signal's default action.
    """
    if threading.get_ident() != _alarm.thread or not hasattr(signal, "setitimer"):
        return False
    if signal.getitimer(signal.ITIMER_REAL)[0] != 0:
        return False
    handler = signal.getsignal(signal.SIGALRM)
    if handler is signal.SIG_DFL:
        signal.signal(signal.SIGALRM, _on_alarm)
    return handler is _on_alarm or handler is signal.SIG_DFL


def release_alarm() -> None:
    """Take our handler of the signal away, unless it is in use: Prefect's timeouts use no other code's."""
    if take_alarm() and not _alarm.is_set:
        signal.signal(signal.SIGALRM, signal.SIG_DFL)


def _call_with_alarm(
    fn: Callable[..., T], args: Sequence[Any], kwargs: Mapping[str, Any], seconds: float
) -> T:
    """The value of `fn(*args, **kwargs)`, if it returns within `seconds`. Only after `take_alarm()`.

    At the deadline the call is interrupted: its `finally` blocks run, and `AttemptTimeout` is raised here.
    C code that resumes waiting after a signal (some database drivers) is interrupted only when it returns to
    Python.
    """
    _alarm.is_set, _alarm.delays = True, 0
    try:
        signal.setitimer(signal.ITIMER_REAL, seconds, AGAIN_SECONDS)
        try:
            return fn(*args, **kwargs)
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
    except DeadlinePassed:
        signal.setitimer(signal.ITIMER_REAL, 0)
        raise overdue(seconds, name_of(fn)) from None
    finally:
        _alarm.is_set = False


def _on_alarm(number: int, frame: FrameType | None) -> None:
    if _alarm.is_set:
        name = "" if frame is None else frame.f_code.co_name.strip("_")
        if not name.startswith(LOCKING) or _alarm.delays >= MOST_DELAYS:
            raise DeadlinePassed
        _alarm.delays += 1
        signal.setitimer(signal.ITIMER_REAL, SOON, AGAIN_SECONDS)
        return
    # Not our timer: other code sent the signal, and expects its default action.
    signal.signal(number, signal.SIG_DFL)
    signal.raise_signal(number)


T = TypeVar("T")
Mode = Literal["auto", "thread", "process"]


class Timeout(Policy):
    """How long one attempt may take, in seconds (or text such as "500ms", "1h30m", or a timedelta).

    `total` bounds the attempt. `idle`, for generators, bounds the wait for each chunk; with a generator,
    `total` counts only the time spent waiting for it, not what the consumer does between two chunks.

    An overdue async call is cancelled. For a sync call the `mode` decides: "auto" (the default) interrupts it
    if it runs on the main thread, and is like "thread" elsewhere. "thread" stops waiting at once, and the
    call goes on in its thread. "process" runs the call in a child process and kills that. Use "thread" for a
    call on the main thread that blocks in C code that ignores signals, such as some database drivers.

        Timeout(30)   Timeout(30, mode="process")   Timeout(total=30, idle=5)

    JSON may have `timeout_ms` in place of `total`. Raises `ConfigurationError`.
    """

    by_position: ClassVar[tuple[str, ...]] = ("total", "idle")

    total: float | None = Field(default=None, description="The longest time that one attempt may take.")
    idle: float | None = Field(
        default=None, description="The longest wait for the next chunk of a generator."
    )
    mode: Mode = Field(
        default="auto",
        description="What happens to a call at its deadline: it is interrupted, abandoned, or killed.",
    )

    if TYPE_CHECKING:

        def __init__(
            self, total: Duration | None = None, idle: Duration | None = None, **more: Mode | float | None
        ) -> None: ...

    @model_validator(mode="before")
    @classmethod
    def _translate(cls, data: Any) -> Any:
        if not isinstance(data, Mapping):
            return {"total": data}
        fields = dict(cast("Mapping[str, Any]", data))
        milliseconds = fields.pop("timeout_ms", None)
        if milliseconds is not None:
            if fields.get("total") is not None:
                raise ValueError("it was given both total and timeout_ms: write one of them")
            is_number = isinstance(milliseconds, int | float) and not isinstance(milliseconds, bool)
            fields["total"] = milliseconds / 1000 if is_number else milliseconds
        if (
            fields.get("total") is None
            and fields.get("idle") is None
            and fields.keys() <= cls.model_fields.keys()
        ):
            raise ValueError("it needs a time: write Timeout(30) or Timeout(idle=5)")
        return fields

    @field_validator("total", "idle", mode="before")
    @classmethod
    def _is_above_zero(cls, value: Any) -> float | None:
        number = seconds_of(value)
        if value is not None and (number is None or not 0 < number <= LONGEST):
            form = "of at most ten years" if number and number > 0 else "above 0"
            raise ValueError(f"{value!r} is not a duration {form}: write {FORMS}; for no limit, timeout=None")
        return number

    @classmethod
    def of(cls, value: Any, operations: Mapping[str, float] = DEFAULT_OPERATIONS) -> Timeout | None:
        """The timeout from `value`: None, a duration, an operation's name, JSON, or a Timeout.

        Raises `ConfigurationError` for other values; for an unknown name it suggests the nearest one.

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
            return cls(**{str(name): option for name, option in cast("Mapping[Any, Any]", value).items()})
        raise ConfigurationError(
            f"a timeout cannot be a {type(value).__name__}: write seconds, an operation or Timeout(...)"
        )

    def check_for(self, fn: Callable[..., Any]) -> None:
        """Raise `ConfigurationError` if this timeout cannot be enforced for `fn`."""
        name = getattr(fn, "__name__", None) or type(fn).__name__
        streams = generates(fn)
        if self.idle is not None and not streams:
            raise ConfigurationError(
                f"{name} is not a generator, so idle={self.idle:g} has no effect: write Timeout(total=...)"
            )
        if self.mode == "process" and streams:
            raise ConfigurationError(
                f'{name} is a generator, which cannot run with mode="process": write mode="thread", or '
                "return a list"
            )


def within_deadline(timeout: Timeout | None) -> Timeout | None:
    """The timeout, or the time until the deadline around this code if that is shorter. Raises `NotBegun`."""
    limit = current_deadline.get()
    if limit is None:
        return timeout
    total = limit.check()
    if timeout is None:
        return Timeout.model_construct(total=total)
    return timeout.model_copy(update={"total": min(timeout.total or total, total)})


def with_deadline(
    timeout: Timeout | None, fn: Callable[..., Any], isasync: bool, named: Callable[..., Any]
) -> Callable[..., Any]:
    """The function, limited to `timeout.total`; AttemptTimeout has the name of the function `named`.

    Not for `mode="process"`.
    """
    if timeout is None or timeout.total is None:
        return fn
    if isasync:
        return partial(acall_within, timeout.total, name_of(named), fn)
    return partial(call_within, timeout, fn)


async def acall_within(
    seconds: float, what: str, fn: Callable[..., Any], /, *args: Any, **kwargs: Any
) -> Any:
    """The result of the awaitable that `fn` returns, if it ends within `seconds`; else it is cancelled.

    The awaitable runs in the calling task. The cancellation is raised at its next `await`, and again at each
    later one while the code goes on. Code that blocks the event loop, shields itself, or always catches the
    cancellation ends late. If such code returns a value after the deadline, the value is returned, since the
    work was done. The code's own `TimeoutError` and a cancellation from outside pass through unchanged.

    Raises `AttemptTimeout`, and any exception of the awaitable.
    """
    import anyio

    with anyio.move_on_after(seconds):
        value = await fn(*args, **kwargs)
        return value if type(value) in PLAIN else await last(value)
    raise overdue(seconds, what)


def call_within(timeout: Timeout, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
    seconds = timeout.total
    assert seconds is not None
    if timeout.mode == "auto" and take_alarm():
        return _call_with_alarm(fn, args, kwargs, seconds)
    return call_with_deadline(fn, args, kwargs, seconds)


def _operation(name: str, operations: Mapping[str, float]) -> float:
    if name in operations:
        return operations[name]
    raise ConfigurationError(
        f"unknown operation {name!r} for a timeout{nearest(name, operations).rstrip('?')}, "
        'or a duration such as "30s"'
    )
