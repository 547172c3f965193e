"""The decorator of everything that lets a call in and sees it out: circuits and limits."""

from __future__ import annotations

import functools
import inspect
from collections.abc import AsyncGenerator, Callable, Generator, Mapping
from contextlib import aclosing
from typing import Any, Protocol, TypeVar, cast

from prefect_resilience.base.drive import Sequence, adrive, drive

F = TypeVar("F", bound=Callable[..., Any])


class Around(Protocol):
    """What stands around a call. A ticket is handed out at the way in, and handed in at the way out."""

    @property
    def fields(self) -> tuple[str, ...]:
        """The parameters that the name needs."""
        ...

    def bind(self, parameters: Mapping[str, Any], /) -> Around:
        """The one for these parameters."""
        ...

    def call(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any: ...

    async def acall(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any: ...

    def entered(self) -> Sequence[Any]:
        """Wait until a call may be made; gives the ticket."""
        ...

    def left(self, ticket: Any, error: BaseException | None = None) -> Sequence[None]:
        """The call has ended, with `error` if it raised."""
        ...


Bind = Callable[[tuple[Any, ...], dict[str, Any]], Around]


def decorate(around: Around, fn: F) -> F:
    """`fn` with `around` around each call, of the same kind: plain, async, generator or async generator.

    The name's fields are filled from the arguments of each call. A generator is one call from its first
    item to its end.
    """
    bind = _binder(around, fn)
    if inspect.isasyncgenfunction(fn):
        wrapper = _async_generator(bind, fn)
    elif inspect.iscoroutinefunction(fn):
        wrapper = _async(bind, fn)
    elif inspect.isgeneratorfunction(fn):
        wrapper = _generator(bind, fn)
    else:
        wrapper = _plain(bind, fn)
    return cast("F", functools.wraps(fn)(wrapper))


def _binder(around: Around, fn: Callable[..., Any]) -> Bind:
    if not around.fields:
        return lambda args, kwargs: around
    signature = inspect.signature(fn)

    def bind(args: tuple[Any, ...], kwargs: dict[str, Any]) -> Around:
        bound = signature.bind(*args, **kwargs)
        bound.apply_defaults()
        return around.bind(bound.arguments)

    return bind


def _plain(bind: Bind, fn: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        return bind(args, kwargs).call(fn, *args, **kwargs)

    return call


def _async(bind: Bind, fn: Callable[..., Any]) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> Any:
        return await bind(args, kwargs).acall(fn, *args, **kwargs)

    return call


def _generator(bind: Bind, fn: Callable[..., Any]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        around = bind(args, kwargs)
        ticket = drive(around.entered())
        try:
            result = yield from cast("Generator[Any, Any, Any]", fn(*args, **kwargs))
        except BaseException as error:
            drive(around.left(ticket, error))
            raise
        drive(around.left(ticket))
        return result

    return call


def _async_generator(bind: Bind, fn: Callable[..., Any]) -> Callable[..., Any]:
    async def call(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, Any]:
        around = bind(args, kwargs)
        ticket = await adrive(around.entered())
        try:
            async with aclosing(fn(*args, **kwargs)) as items:
                async for item in items:
                    yield item
        except BaseException as error:
            await adrive(around.left(ticket, error))
            raise
        await adrive(around.left(ticket))

    return call
