"""The ways to put a limit around code: a block, a decorator, a call.

A limit itself says only what entering and leaving is.
"""

from __future__ import annotations

import inspect
from abc import abstractmethod
from collections.abc import Awaitable, Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from types import CoroutineType, TracebackType
from typing import TYPE_CHECKING, Any, TypeVar, cast, overload
from uuid import uuid4

from pydantic import PrivateAttr, field_validator
from typing_extensions import Self

from prefect_resilience.base.drive import Invoke, Sequence, adrive, drive
from prefect_resilience.base.naming import fill, shorten, template_fields
from prefect_resilience.base.policy import Policy
from prefect_resilience.base.wrapping import decorate
from prefect_resilience.errors.exceptions import ConfigurationError

if TYPE_CHECKING:
    from prefect_resilience.guards.limits.leases import Lease
    from prefect_resilience.guards.limits.line import Place

T = TypeVar("T")
F = TypeVar("F", bound=Callable[..., Any])


@dataclass(slots=True, eq=False)
class Ticket:
    """What a caller who was let in holds, and hands in when it leaves."""

    place: Place | None = None
    lease: Lease | None = None


# The blocks that are open in this context, innermost last.
_blocks: ContextVar[tuple[tuple[Limit, Ticket], ...]] = ContextVar(
    "prefect_resilience_limit_blocks", default=()
)


class Limit(Policy):
    """The base of the limits on how many calls there may be.

    `name` may be a template over a task's parameters, as in "llm:{provider}". Limits of the same name are
    one limit in this process, and in a flow or task run in the whole fleet; one without a name is its own.
    """

    name: str | None = None
    _own: str = PrivateAttr(default="")
    _literal: bool = PrivateAttr(default=False)

    def model_post_init(self, context: Any, /) -> None:
        if self.name is None:
            self._own = uuid4().hex  # travels with copies and pickles, so that they stay the same limit

    @field_validator("name")
    @classmethod
    def _name_can_be_read(cls, name: str | None) -> str | None:
        if name is not None:
            template_fields(name, "limit")
        return name

    # -- what a limit says

    @abstractmethod
    def entered(self) -> Sequence[Ticket]:
        """Wait until a call may be made."""

    @abstractmethod
    def left(self, ticket: Ticket, error: BaseException | None = None) -> Sequence[None]:
        """The call has ended, with `error` if it raised; after a cancellation nothing is awaited."""

    # -- names

    @property
    def fields(self) -> tuple[str, ...]:
        """The parameters that the name needs."""
        return () if self.name is None or self._literal else template_fields(self.name, "limit")

    def _key(self, name: str | None) -> str:
        """What this process knows the limit by: its settled name, or what is its own."""
        # Read from where pydantic keeps it: its way there would be a tenth of what a limit costs.
        return name or cast("dict[str, str]", self.__pydantic_private__)["_own"]

    def bind(self, parameters: Mapping[str, Any]) -> Self:
        """The limit for these parameters: itself without fields, else one with the name filled in.

        Raises ConfigurationError when a parameter is missing.
        """
        if self.name is None or not self.fields:
            return self
        bound = self.model_copy(update={"name": fill(self.name, parameters, "limit")})
        bound._literal = True
        return bound

    def settled_name(self) -> str | None:
        """The name, with nothing left to fill in; ConfigurationError while it is a template."""
        if self.name is None or self._literal:
            return self.name
        fields = template_fields(self.name, "limit")
        if fields:
            raise ConfigurationError(
                f"the limit's name {self.name!r} is a template: call .bind({{{fields[0]!r}: ...}}) first, or "
                "decorate a function that has the parameter"
            )
        return shorten(self.name.format())

    # -- blocks

    def __enter__(self) -> Self:
        _blocks.set((*_blocks.get(), (self, drive(self.entered()))))
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        drive(self.left(self._close_block(), error))

    async def __aenter__(self) -> Self:
        ticket = await adrive(self.entered())
        _blocks.set((*_blocks.get(), (self, ticket)))
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        await adrive(self.left(self._close_block(), error))

    def _close_block(self) -> Ticket:
        blocks = _blocks.get()
        for index in range(len(blocks) - 1, -1, -1):
            if blocks[index][0] is self:
                _blocks.set(blocks[:index] + blocks[index + 1 :])
                return blocks[index][1]
        raise RuntimeError(f"a block of {type(self).__name__} ends in another context than it began in")

    # -- calls

    def call(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        """What `fn(*args, **kwargs)` returns, within the limit. For an async function use `acall`."""
        if inspect.iscoroutinefunction(fn):
            raise _is_async(fn)
        result = drive(self._around(Invoke(fn, args, kwargs)))
        if type(result) is CoroutineType:
            cast("CoroutineType[Any, Any, Any]", result).close()
            raise _is_async(fn)
        return result

    @overload
    async def acall(self, fn: Callable[..., Awaitable[T]], /, *args: Any, **kwargs: Any) -> T: ...
    @overload
    async def acall(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> T: ...
    async def acall(self, fn: Callable[..., Any], /, *args: Any, **kwargs: Any) -> Any:
        """`fn(*args, **kwargs)`, awaited if need be, within the limit. The loop never blocks."""
        return await adrive(self._around(Invoke(fn, args, kwargs)))

    def _around(self, invoke: Invoke) -> Sequence[Any]:
        ticket = yield from self.entered()
        try:
            result = yield invoke
        except BaseException as error:
            yield from self.left(ticket, error)
            raise
        yield from self.left(ticket)
        return result

    def __call__(self, fn: F) -> F:
        """Decorate a function: plain, async, generator or async generator.

        The name's fields are filled from the arguments of each call. A generator holds its place from its
        first item to its end.
        """
        missing = [field for field in self.fields if field not in inspect.signature(fn).parameters]
        if missing:
            raise ConfigurationError(
                f"the limit's name {self.name!r} cannot be filled in: {fn.__name__} has no parameter "
                f"{missing[0]!r}"
            )
        return decorate(self, fn)


def _is_async(fn: Callable[..., Any]) -> ConfigurationError:
    name = getattr(fn, "__qualname__", repr(fn))
    return ConfigurationError(f"{name} is async: write `await limit.acall(...)`")
