"""Injected faults: a delay, or an error or another value in place of the result of a call.

Nothing happens unless `prefect_resilience.testing.inject` is used; until then a call only checks one empty
list. The kinds of faults are those of Polly's chaos strategies: latency, fault, outcome, each at a rate.
"""

from __future__ import annotations

import functools
import random
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Any, cast

from pydantic import Field, model_validator

from prefect_resilience.base.drive import Invoke, Steps, adrive, drive
from prefect_resilience.base.naming import UNSET
from prefect_resilience.base.policy import Policy
from prefect_resilience.errors.exceptions import ConfigurationError


class InjectedFault(Exception):
    """An injected error. `status_code` is read like that of any HTTP client's error."""

    def __init__(self, status_code: int) -> None:
        super().__init__(status_code)
        self.status_code = status_code

    def __str__(self) -> str:
        return f"injected: HTTP {self.status_code}"


NOTHING: Any = UNSET
"""The outcome of a call that returns its own result."""


class Injection(Policy):
    """The faults to inject into the calls of one target, and how often.

    target: the name of a task or circuit, with `*` for any text; None for every call.
    latency: seconds before the call.
    fault: the error to raise instead: an exception, its class, a function that returns one, or an HTTP
        status.
    outcome: the value to return instead.
    rate: the share of the calls, from 0 to 1. times: the maximum number of affected calls. seed: makes the
        random draws repeatable.
    """

    target: str | None = None
    latency: float | None = Field(default=None, ge=0)
    fault: Any = None
    outcome: Any = NOTHING
    rate: float = Field(default=1.0, ge=0, le=1)
    times: int | None = Field(default=None, ge=1)
    seed: int | None = None

    @model_validator(mode="after")
    def _does_something(self) -> Injection:
        error_of(self.fault)
        if self.latency is None and self.fault is None and self.outcome is NOTHING:
            raise ValueError("Injection does nothing: write latency=, fault= or outcome=")
        if self.fault is not None and self.outcome is not NOTHING:
            raise ValueError(
                "Injection: a call that raises a fault has no outcome: write fault= or outcome=, not both"
            )
        return self

    def concerns(self, names: tuple[str, ...]) -> bool:
        return self.target is None or any(fnmatchcase(name, self.target) for name in names)


def error_of(fault: Any) -> BaseException | None:
    """The exception for a `fault=` option. Raises ConfigurationError if the value means none."""
    if callable(fault):
        # A class of exceptions, or a function.
        fault = cast("Callable[[], Any]", fault)()
    if fault is None or isinstance(fault, BaseException):
        return fault
    if isinstance(fault, int) and not isinstance(fault, bool) and 400 <= fault <= 599:
        return InjectedFault(fault)
    raise ConfigurationError(
        f"fault={fault!r} cannot be raised: write an exception, its class, or a status from 400 to 599"
    )


@dataclass(eq=False)
class Injected:
    """An active injection, with the numbers of calls that it saw and changed."""

    injection: Injection
    calls: int = 0
    done: int = 0
    _random: random.Random = field(default_factory=random.Random)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __post_init__(self) -> None:
        self._random.seed(self.injection.seed)

    def draw(self) -> float | None:
        """The latency to inject into this call; None if the call is not changed."""
        injection = self.injection
        with self._lock:
            self.calls += 1
            chance = self._random.random()
            spent = injection.times is not None and self.done >= injection.times
            if spent or chance >= injection.rate:
                return None
            self.done += 1
            return injection.latency or 0.0


active: list[Injected] = []
"""The active injections of this process."""


def around(call: Invoke, isasync: bool, *names: str) -> Invoke:
    """The call with the injections for any of these names."""
    fn = call.fn
    for injected in tuple(active):
        if injected.injection.concerns(names):
            fn = _behaving(fn, isasync, injected)
    return call if fn is call.fn else Invoke(fn, call.args, call.kwargs)


def _behaving(fn: Callable[..., Any], isasync: bool, injected: Injected) -> Callable[..., Any]:
    if isasync:

        async def call_with_faults(*args: Any, **kwargs: Any) -> Any:
            import asyncio

            return await adrive(_call(injected, asyncio.sleep, fn, args, kwargs))

        return functools.wraps(fn)(call_with_faults)
    return functools.wraps(fn)(lambda *args, **kwargs: drive(_call(injected, time.sleep, fn, args, kwargs)))


def _call(
    injected: Injected,
    sleep: Callable[[float], Any],
    fn: Callable[..., Any],
    args: tuple[Any, ...],
    kwargs: dict[str, Any],
) -> Steps[Any]:
    """One call, with the injected fault if it is drawn."""
    latency = injected.draw()
    if latency is None:
        return (yield Invoke(fn, args, kwargs))
    if latency:
        yield Invoke(sleep, (latency,))
    injection = injected.injection
    error = error_of(injection.fault)
    if error is not None:
        raise error
    return (yield Invoke(fn, args, kwargs)) if injection.outcome is NOTHING else injection.outcome
