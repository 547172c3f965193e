"""`Hedge`: ask again beside a slow answer, and take whichever comes first."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Awaitable, Callable
from datetime import timedelta
from functools import partial
from typing import Any, TypeVar, cast

from pydantic import Field, field_validator

from prefect_resilience.configuration import Policy
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.errors.notes import add_note
from prefect_resilience.errors.redact import redact
from prefect_resilience.limits.spans import count, span

T = TypeVar("T")


class Hedge(Policy):
    """For idempotent async reads: after `after` seconds without an answer start another, up to `max` more.

        answer = await Hedge(after=0.8).acall(search, query)

    The first success wins; the other calls are cancelled, and waited for until they have ended. A call that
    fails starts the next one at once. Choose `after` so that few calls take longer, such as the 95th
    percentile: the load then grows by 5 % (Dean and Barroso, "The Tail at Scale", 2013).
    Raises `ConfigurationError` for what cannot be meant.
    """

    after: float = Field(description="Seconds without an answer after which another call is started.")
    max: int = Field(default=1, description="How many calls may be started beside the first one.")

    def __init__(self, after: float | str | timedelta | None = None, max: int = 1, **more: Any) -> None:
        super().__init__(after=after, max=max, **more)

    @field_validator("after", mode="before")
    @classmethod
    def _is_a_span(cls, value: object) -> float:
        return span("Hedge's after", value)

    @field_validator("max", mode="before")
    @classmethod
    def _is_a_count(cls, value: object) -> int:
        return count("Hedge's max", value, "Hedge(after=0.5, max=2)")

    async def acall(self, fn: Callable[..., Awaitable[T]], /, *args: Any, **kwargs: Any) -> T:
        """What the first successful call of `fn(*args, **kwargs)` returns.

        When all fail, the first error is raised, with the others in its notes (PEP 678). Raises
        ConfigurationError for a sync function, which cannot be cancelled.

        Example:
            >>> import asyncio
            >>> async def read(drug: str) -> str:
            ...     return f"{drug}: 100 mg"
            >>> asyncio.run(Hedge(after=0.8).acall(read, "aspirin"))
            'aspirin: 100 mg'
        """
        if not _is_async(fn):
            name = getattr(fn, "__qualname__", None) or repr(fn)
            raise ConfigurationError(
                f"{name} is no async function, and a sync call cannot be cancelled when another one has won: "
                f"write `async def {getattr(fn, '__name__', 'fetch').strip('<>')}(...)`"
            )
        race = _Race(partial(fn, *args, **kwargs), self.max + 1)
        try:
            return await race.won(self.after)
        finally:
            await race.ended()


class _Race:
    """Several calls of one function, each in its own task."""

    def __init__(self, make: Callable[[], Awaitable[Any]], most: int) -> None:
        self._make = make
        self._most = most
        self._started: list[asyncio.Task[Any]] = []
        self._running: set[asyncio.Task[Any]] = set()
        self._errors: list[tuple[int, BaseException]] = []

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
                self._errors.append((self._started.index(task) + 1, error))
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
        task = asyncio.ensure_future(_awaited(self._make))
        self._started.append(task)
        self._running.add(task)

    def _error(self) -> BaseException:
        (_, first), *others = self._errors
        for number, error in others:
            if error is not first:
                add_note(
                    first, f"prefect-resilience: hedged call {number} failed, too: {redact(repr(error))}"
                )
        return first


async def _awaited(make: Callable[[], Awaitable[T]]) -> T:
    return await make()


def _error_of(task: asyncio.Task[Any]) -> BaseException | None:
    return asyncio.CancelledError() if task.cancelled() else task.exception()


def _is_async(fn: Callable[..., Any]) -> bool:
    while isinstance(fn, partial):
        fn = cast("Callable[..., Any]", fn.func)
    if inspect.iscoroutinefunction(fn) or getattr(fn, "isasync", False):
        return True
    return inspect.iscoroutinefunction(getattr(fn, "__call__", None))  # noqa: B004 the method is what is looked at
