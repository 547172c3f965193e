"""`Hedge`: start another call while the first one is slow, and take the first answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from pydantic import Field

from prefect_resilience.base.durations import Duration, Seconds
from prefect_resilience.base.policy import Policy
from prefect_resilience.errors.exceptions import ConfigurationError, add_note
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.guards.fallbacks import is_async
from prefect_resilience.guards.limits.guarding import Limit, LimitRefused

T = TypeVar("T")


class Hedge(Policy):
    """For idempotent async reads: starts another call after `after` seconds without an answer, up to `max`.

        answer = await Hedge(after=0.8).acall(search, query)

    The first success wins; the other calls are cancelled, and `Hedge` waits for their end. If a call fails,
    the next one starts at once. Within `limits=` each call takes a place of its own, and a further call is
    made only if a place is free at once. Choose `after` so that few calls take longer, such as the 95th
    percentile: the load then grows by 5 % (Dean and Barroso, "The Tail at Scale", 2013).
    Raises `ConfigurationError` for invalid options.
    """

    by_position: ClassVar[tuple[str, ...]] = ("after", "max")

    after: Seconds = Field(description="The time without an answer after which another call starts.")
    max: int = Field(default=1, strict=True, ge=1, description="The maximum number of additional calls.")

    if TYPE_CHECKING:

        def __init__(self, after: Duration, max: int = 1) -> None: ...

    async def acall(self, fn: Callable[..., Awaitable[T]], /, *args: Any, **kwargs: Any) -> T:
        """The value of the first successful call of `fn(*args, **kwargs)`.

        When all fail, the first error is raised, with the others in its notes (PEP 678). Raises
        ConfigurationError for a sync function, which cannot be cancelled.

        Example:
            >>> import asyncio
            >>> async def read(drug: str) -> str:
            ...     return f"{drug}: 100 mg"
            >>> asyncio.run(Hedge(after=0.8).acall(read, "aspirin"))
            'aspirin: 100 mg'
        """
        if not is_async(fn):
            name = getattr(fn, "__qualname__", None) or repr(fn)
            raise ConfigurationError(
                f"{name} is not an async function, and a sync call cannot be cancelled when another one has "
                f"won: write `async def {getattr(fn, '__name__', 'fetch').strip('<>')}(...)`"
            )
        return await self.within(fn, (), {})(*args, **kwargs)

    def within(
        self, fn: Callable[..., Awaitable[T]], limits: Sequence[Limit], parameters: Mapping[str, Any]
    ) -> Callable[..., Awaitable[T]]:
        """`acall` of `fn`, inside these limits. Each further call takes places of its own; it is not made if
        they are not free at once.

        parameters: the parameters for the limits' names.
        """
        more: Callable[..., Awaitable[T]] = fn
        for limit in reversed(limits):
            more = partial(limit.bind(parameters).model_copy(update={"max_wait": 0.0}).acall, more)

        async def race(*args: Any, **kwargs: Any) -> T:
            calls = _Race(partial(fn, *args, **kwargs), partial(more, *args, **kwargs), self.max + 1)
            try:
                return await calls.won(self.after)
            finally:
                await calls.ended()

        return race


@dataclass(slots=True)
class _Race:
    """Several calls, each in its own task: the first is made by `make`, the others by `more`."""

    _make: Callable[[], Awaitable[Any]]
    _more: Callable[[], Awaitable[Any]]
    _most: int
    _started: list[asyncio.Task[Any]] = field(default_factory=list["asyncio.Task[Any]"])
    _running: set[asyncio.Task[Any]] = field(default_factory=set["asyncio.Task[Any]"])
    _errors: list[tuple[int, BaseException]] = field(default_factory=list[tuple[int, BaseException]])

    async def won(self, after: float) -> Any:
        self._start()
        while True:
            patience = after if len(self._started) < self._most else None
            done, self._running = await asyncio.wait(
                self._running, timeout=patience, return_when=asyncio.FIRST_COMPLETED
            )
            ended = [(task, _error_of(task)) for task in sorted(done, key=self._started.index)]
            for task, error in ended:
                if error is None:
                    return task.result()
                number = self._started.index(task) + 1
                if number == 1 or not isinstance(error, LimitRefused):  # a rejected call was not made
                    self._errors.append((number, error))
            if len(self._started) < self._most:
                self._start()
            elif not self._running:
                raise self._error()

    async def ended(self) -> None:
        """Cancel what is still running, and wait for its end."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)

    def _start(self) -> None:
        task = asyncio.ensure_future(_awaited(self._more if self._started else self._make))
        self._started.append(task)
        self._running.add(task)

    def _error(self) -> BaseException:
        (_, first), *others = self._errors
        for number, error in others:
            if error is not first:
                add_note(first, f"prefect-resilience: hedged call {number} failed too: {redact(repr(error))}")
        return first


async def _awaited(make: Callable[[], Awaitable[T]]) -> T:
    return await make()


def _error_of(task: asyncio.Task[Any]) -> BaseException | None:
    return asyncio.CancelledError() if task.cancelled() else task.exception()
