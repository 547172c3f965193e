"""The one sequence of a guarded call, and the decorator that puts it around functions."""

from __future__ import annotations

import functools
import inspect
import threading
from collections.abc import AsyncGenerator, Callable, Generator
from contextlib import aclosing
from time import monotonic
from typing import TYPE_CHECKING, Any, TypeVar, cast

from prefect_resilience.circuits.permits import Permit
from prefect_resilience.drive import Blocking, Invoke, Sequence, adrive, drive

if TYPE_CHECKING:
    from prefect_resilience.circuits.breaker import CircuitBreaker
    from prefect_resilience.errors.info import ErrorInfo

F = TypeVar("F", bound=Callable[..., Any])
Bind = Callable[[tuple[Any, ...], dict[str, Any]], "CircuitBreaker"]


def entering(breaker: CircuitBreaker) -> Sequence[Permit]:
    """Leave to make one call; raises CircuitOpenError.

    A caller that is cancelled while the store is asked in a thread leaves nothing behind: whatever lease
    that thread still gets is given back by it.
    """
    permit = breaker.admit()
    if permit is not None:
        return permit
    question = Question(breaker)
    try:
        return (yield Blocking(question.ask))
    except BaseException:
        question.abandon()
        raise


class Question:
    """One asking of the store whose asker may go away."""

    def __init__(self, breaker: CircuitBreaker) -> None:
        self._breaker = breaker
        self._abandoned = False
        self._permit: Permit | None = None

    def ask(self) -> Permit:
        """The permit; given back when nobody waits for it any more."""
        permit = self._permit = self._breaker.ask()
        if self._abandoned:
            self._breaker.release(permit)
            self._breaker.flush()
        return permit

    def abandon(self) -> None:
        """Nobody waits for the answer any more: a lease that has come with it is given back."""
        self._abandoned = True
        if self._permit is not None and self._breaker.release(self._permit):
            _flush_aside(self._breaker)


def leaving(
    breaker: CircuitBreaker,
    permit: Permit,
    error: BaseException | None,
    began: float,
    info: ErrorInfo | None = None,
) -> Sequence[None]:
    """Count how the call ended that began at `began` by `monotonic()`; `info` is the error, if classified."""
    due = breaker.settle(permit, error, info, monotonic() - began)
    if due and (error is None or isinstance(error, Exception)):
        yield Blocking(breaker.flush)
    elif due:
        _flush_aside(breaker)


def _flush_aside(breaker: CircuitBreaker) -> None:
    # A caller that was cancelled may await nothing any more, and its place must be free all the same.
    threading.Thread(target=breaker.flush, name="circuit-flush", daemon=True).start()


def guarded(breaker: CircuitBreaker, invoke: Invoke) -> Sequence[Any]:
    """One call with everything around it; returns or raises what the call did."""
    permit = yield from entering(breaker)
    began = monotonic()
    try:
        result = yield invoke
    except BaseException as error:
        yield from leaving(breaker, permit, error, began)
        raise
    yield from leaving(breaker, permit, None, began)
    return result


def decorate(breaker: CircuitBreaker, function: F) -> F:
    """`function` guarded, of the same kind: plain, async, generator or async generator.

    The name's fields are filled from the arguments of each call. A generator is one call from its first
    item to its end; one that is closed early counts as neither success nor failure.
    """
    bind = _binder(breaker, function)
    if inspect.isasyncgenfunction(function):
        wrapper = _async_generator(bind, function)
    elif inspect.iscoroutinefunction(function):
        wrapper = _async(bind, function)
    elif inspect.isgeneratorfunction(function):
        wrapper = _generator(bind, function)
    else:
        wrapper = _plain(bind, function)
    return cast("F", functools.wraps(function)(wrapper))


def _plain(bind: Bind, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return bind(args, kwargs).call(function, *args, **kwargs)

    return call


def _async(bind: Bind, function: Callable[..., Any]) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> Any:
        return await bind(args, kwargs).acall(function, *args, **kwargs)

    return call


def _generator(bind: Bind, function: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        breaker = bind(args, kwargs)
        permit = drive(entering(breaker))
        began = monotonic()
        try:
            result = yield from cast("Generator[Any, Any, Any]", function(*args, **kwargs))
        except BaseException as error:
            drive(leaving(breaker, permit, error, began))
            raise
        drive(leaving(breaker, permit, None, began))
        return result

    return call


def _async_generator(bind: Bind, function: Callable[..., Any]) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        breaker = bind(args, kwargs)
        permit = await adrive(entering(breaker))
        began = monotonic()
        try:
            async with aclosing(function(*args, **kwargs)) as items:
                async for item in items:
                    yield item
        except BaseException as error:
            await adrive(leaving(breaker, permit, error, began))
            raise
        await adrive(leaving(breaker, permit, None, began))

    return call


def _binder(breaker: CircuitBreaker, function: Callable[..., Any]) -> Bind:
    if not breaker.fields:
        return lambda args, kwargs: breaker
    signature = inspect.signature(function)

    def bind(args: tuple[Any, ...], kwargs: dict[str, Any]) -> CircuitBreaker:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return breaker.bind(bound.arguments)

    return bind
