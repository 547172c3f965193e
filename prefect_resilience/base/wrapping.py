"""The base of circuits and limits, which guard calls.

A subclass defines how a call enters and leaves (`acquire`, `finish`). This module adds blocks, the decorator
and calls, each of them sync and async.
"""

from __future__ import annotations

import functools
import inspect
from abc import abstractmethod
from collections.abc import AsyncGenerator, Awaitable, Callable, Generator, Mapping
from contextlib import aclosing, closing
from contextvars import ContextVar
from functools import partial
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Self, TypeVar, cast, overload

from prefect_resilience.base.drive import Invoke, Steps, adrive, drive
from prefect_resilience.base.outcomes import (
    UnawaitedResult,
    is_async_generator_function,
    is_coroutine_function,
    is_generator_function,
    require_completed,
    require_result,
    take_returned,
)
from prefect_resilience.errors.exceptions import ConfigurationError

if TYPE_CHECKING:
    from prefect_resilience.errors.taxonomy import ErrorInfo

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])

# The open blocks of this context, the innermost last. One object may guard nested blocks.
_blocks: ContextVar[tuple[tuple[Guarding, Any], ...]] = ContextVar("prefect_resilience_blocks", default=())


class Guarding:
    """Guards calls. `acquire` returns a ticket, which `finish` takes."""

    _kind: ClassVar[str]
    """Its name in messages, such as "limit"."""

    metered: ClassVar[bool] = False
    """Whether it is bound to the arguments of each call, and its tickets see the answers."""

    @property
    @abstractmethod
    def fields(self) -> tuple[str, ...]:
        """The parameters that the name needs."""

    @abstractmethod
    def bind(self, parameters: Mapping[str, Any], /) -> Self:
        """The object of the name with these parameters filled in; this object if the name has no fields."""

    @abstractmethod
    def acquire(self) -> Steps[Any]:
        """Wait until a call may be made, and return the ticket."""

    @abstractmethod
    def finish(
        self,
        ticket: Any,
        error: BaseException | None = None,
        *,
        info: ErrorInfo | None = None,
        took: float | None = None,
    ) -> Steps[None]:
        """End the call, which raised `error` or nothing. After a cancellation nothing is awaited.

        `info` is the classified error, if the caller has it. `took` is the duration of the call in seconds,
        if that is not the time since `acquire`.
        """

    # -- blocks

    def __enter__(self) -> Self:
        _blocks.set((*_blocks.get(), (self, drive(self.acquire()))))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        drive(self.finish(self._close_block(), error))

    async def __aenter__(self) -> Self:
        ticket = await adrive(self.acquire())
        _blocks.set((*_blocks.get(), (self, ticket)))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await adrive(self.finish(self._close_block(), error))

    def _close_block(self) -> Any:
        blocks = _blocks.get()
        for index in range(len(blocks) - 1, -1, -1):
            if blocks[index][0] is self:
                _blocks.set(blocks[:index] + blocks[index + 1 :])
                return blocks[index][1]
        raise RuntimeError(f"the block of {self!r} ended in a different context from the one it began in")

    # -- calls

    def call(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        """Call `fn(*args, **kwargs)`, guarded. For an async function use `acall`."""
        if is_coroutine_function(fn):
            raise self._is_async(fn)
        guarding = self._bound_by(fn)(args, kwargs) if self.metered else self
        try:
            return drive(guarding._around(Invoke(partial(_call, fn), args, kwargs)))
        except UnawaitedResult as error:
            if error.fn is not fn:
                raise
            return self._hand_over(error, None, fn, args, kwargs)

    @overload
    async def acall(self, fn: Callable[..., Awaitable[T]], /, *args: Any, **kwargs: Any) -> T: ...
    @overload
    async def acall(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> T: ...
    async def acall(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """Call `fn(*args, **kwargs)`, guarded; await an awaitable result. Never blocks the event loop."""
        guarding = self._bound_by(fn)(args, kwargs) if self.metered else self
        return await adrive(guarding._around(Invoke(fn, args, kwargs)))

    def _around(self, invoke: Invoke) -> Steps[Any]:
        ticket = yield from self.acquire()
        result: Any = None
        try:
            result = yield invoke
            require_result(result, invoke.fn)
            if self.metered:
                ticket.see(result)
        except BaseException as error:
            yield from self.finish(ticket, error)
            if result is not None and take_returned(invoke.fn, error) is not None:
                return result  # a failed state, for the caller
            raise
        yield from self.finish(ticket)
        return result

    def _hand_over(
        self, error: Exception, result: Any, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        """A failed state for the caller, or the call of a plain function that returned an awaitable, to be
        awaited on the running event loop. Without one it is refused."""
        if not isinstance(error, UnawaitedResult):
            take_returned(fn, error)
            return result
        if error.can_go_on and not is_coroutine_function(error.fn):
            return self.acall(error.going_on(), *args, **kwargs)
        refusal = self._is_async(error.fn) if error.is_of_awaitable else error
        error.close()
        raise refusal from None

    def _is_async(self, fn: Callable[..., Any]) -> ConfigurationError:
        name = getattr(fn, "__qualname__", repr(fn))
        return ConfigurationError(f"{name} is async: write `await {self._kind}.acall(...)`")

    # -- the decorator

    def __call__(self, fn: F) -> F:
        """Decorate a function: plain, async, generator or async generator.

        The arguments of each call fill the name's fields. A generator is one call from its first item to its
        end.
        """
        if is_async_generator_function(fn):
            wrapper = _async_generator(self._bound_by(fn), fn)
        elif is_coroutine_function(fn):
            wrapper = _async(self._bound_by(fn), fn)
        elif is_generator_function(fn):
            wrapper = _generator(self._bound_by(fn), fn)
        else:
            wrapper = _plain(self._bound_by(fn), fn)
        return cast("F", functools.wraps(fn)(wrapper))

    def _bound_by(self, fn: Callable[..., Any]) -> Bind:
        """A function that returns the guarding object for the arguments of one call of `fn`."""
        if not self.fields and not self.metered:
            return lambda args, kwargs: self
        try:
            signature = inspect.signature(fn)
        except ValueError:  # of a function that is not Python's
            return lambda args, kwargs: self

        def bind(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Guarding:
            bound = signature.bind(*args, **kwargs)
            bound.apply_defaults()
            return self.bind(by_name(signature, bound.arguments))

        return bind


def by_name(signature: inspect.Signature, arguments: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of a call; those of its `**kwargs` are on the same level."""
    named = dict(arguments)
    for name, own in signature.parameters.items():
        if own.kind is own.VAR_KEYWORD:
            named |= named.pop(name)
    return named


Bind = Callable[[tuple[Any, ...], dict[str, Any]], Guarding]


def _call(fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
    return require_completed(fn(*args, **kwargs), fn)


def _plain(bind: Bind, fn: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return bind(args, kwargs).call(fn, *args, **kwargs)

    return call


def _async(bind: Bind, fn: Callable[..., Any]) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> Any:
        return await bind(args, kwargs).acall(fn, *args, **kwargs)

    return call


def _generator(bind: Bind, fn: Callable[..., Any]) -> Callable[..., Any]:
    # No `with` block: each step of a generator may run in another context.
    def call(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        guarding = bind(args, kwargs)
        ticket = drive(guarding.acquire())
        items: Generator[Any, Any, Any] = fn(*args, **kwargs)
        try:
            result = yield from (_see_items(items, ticket) if guarding.metered else items)
        except BaseException as error:
            drive(guarding.finish(ticket, error))
            raise
        drive(guarding.finish(ticket))
        return result

    return call


def _see_items(items: Generator[Any, Any, Any], ticket: Any) -> Generator[Any, Any, Any]:
    """The items of a generator, each shown to the ticket."""
    sent: Any = None
    with closing(items):
        while True:
            try:
                item = items.send(sent)
            except StopIteration as stop:
                return stop.value
            ticket.see(item)
            sent = yield item


def _async_generator(bind: Bind, fn: Callable[..., Any]) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        guarding = bind(args, kwargs)
        ticket = await adrive(guarding.acquire())
        try:
            async with aclosing(fn(*args, **kwargs)) as items:
                async for item in items:
                    if guarding.metered:
                        ticket.see(item)
                    yield item
        except BaseException as error:
            await adrive(guarding.finish(ticket, error))
            raise
        await adrive(guarding.finish(ticket))

    return call
