"""`Hedge`: start another call while the first one is slow, and take the first answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar

from pydantic import Field

from prefect_resilience.base.durations import Duration, Seconds
from prefect_resilience.base.policy import Policy
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.errors.secrets.redact import add_note
from prefect_resilience.guards.fallbacks import is_async
from prefect_resilience.guards.limits.guarding import Limit, LimitRefused

T = TypeVar("T")
Make = Callable[[], Awaitable[Any]]


class Hedge(Policy):
    """For idempotent async reads: starts another call after `after` seconds without an answer, up to `max`.

        answer = await Hedge(after=0.8).acall(search, query)

    The first success wins. If a call fails, the next one starts at once. Within `limits=` each call takes a
    place of its own, and a further call is made only if a place is free at once. The other calls are
    cancelled, and `Hedge` waits for their end.

    With the 95th percentile of the latency as `after`, the load grows by about 5 % (Dean and Barroso, "The
    Tail at Scale", 2013).

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
        ConfigurationError for a sync function.

        Example:
            >>> import asyncio
            >>> async def read(drug: str) -> str:
            ...     return f"{drug}: 100 mg"
            >>> asyncio.run(Hedge(after=0.8).acall(read, "aspirin"))
            'aspirin: 100 mg'
        """
        if not is_async(fn):
            name = getattr(fn, "__qualname__", None) or repr(fn)
            raise ConfigurationError(f"{name} is not async, which a Hedge needs: write `async def`")
        return await self.within(fn, (), {})(*args, **kwargs)

    def within(
        self, fn: Callable[..., Awaitable[Any]], limits: Sequence[Limit], parameters: Mapping[str, Any]
    ) -> Callable[..., Awaitable[Any]]:
        """`acall` of `fn`, inside these limits. Each further call takes places of its own; if they are not
        free at once, it is not made.

        parameters: the parameters for the limits' names.
        """
        more = fn
        for limit in reversed(limits):
            bound = limit.bind(parameters).model_copy(update={"max_wait": 0.0})
            more = partial(bound.acall, more)

        async def race(*args: Any, **kwargs: Any) -> Any:
            tasks: list[asyncio.Task[Any]] = []
            try:
                first, other = partial(fn, *args, **kwargs), partial(more, *args, **kwargs)
                return await self._first_success(tasks, first, other)
            finally:
                for task in tasks:
                    task.cancel()
                await asyncio.gather(*tasks, return_exceptions=True)
                tasks.clear()  # an error's traceback holds this frame

        return race

    async def _first_success(self, tasks: list[asyncio.Task[Any]], first: Make, other: Make) -> Any:
        errors: list[BaseException] = []
        running: set[asyncio.Task[Any]] = set()
        try:
            while True:
                if len(tasks) <= self.max:
                    tasks.append(asyncio.ensure_future(_await(other if tasks else first)))
                    running.add(tasks[-1])
                elif not running:
                    raise _with_notes(errors)
                patience = self.after if len(tasks) <= self.max else None
                ended, running = await asyncio.wait(
                    running, timeout=patience, return_when=asyncio.FIRST_COMPLETED
                )
                done = sorted(ended, key=tasks.index)
                ended.clear()
                while done:
                    task = done.pop(0)
                    error = asyncio.CancelledError() if task.cancelled() else task.exception()
                    if error is None:
                        return task.result()
                    if task is tasks[0] or not isinstance(error, LimitRefused):
                        errors.append(error)  # a rejected call was not made
                    del task, error  # see `calls.attempt.make_attempt`
        finally:
            errors.clear()


async def _await(make: Make) -> Any:
    return await make()


def _with_notes(errors: list[BaseException]) -> BaseException:
    first, *rest = errors
    for error in rest:
        if error is not first:
            add_note(first, f"prefect-resilience: another hedged call failed too: {error!r}")
    return first
