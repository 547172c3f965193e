"""`Hedge`: start another call while the first one is slow, and take the first answer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from time import monotonic
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar, cast

from pydantic import Field

from prefect_resilience.base.drive import SLICE_SECONDS, Invoke, Steps, adrive, drive
from prefect_resilience.base.durations import LONGEST, Duration, Seconds
from prefect_resilience.base.outcomes import UnawaitedResult
from prefect_resilience.base.policy import Policy, name_of
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.errors.secrets.redact import add_note
from prefect_resilience.guards.fallbacks import is_async
from prefect_resilience.guards.limits.guarding import Limit, LimitRefused
from prefect_resilience.guards.timeouts.overdue import belongs_to_none
from prefect_resilience.guards.timeouts.threads import Call, abandon, is_abandoned, overdue_calls, start_call

T = TypeVar("T")

MOST_OVERDUE = 20
"""While so many abandoned calls still run in this process, no further call is made."""


class Hedge(Policy):
    """For idempotent reads: starts another call after `after` seconds without an answer, up to `max`.

        answer = Hedge(after=0.8).call(search, query)

    The first success wins. If a call fails, the next one starts at once. Within `limits=` each call takes a
    place of its own, and a further call is made only if a place is free at once.

    With the 95th percentile of the latency as `after`, the load grows by about 5 % (Dean and Barroso, "The
    Tail at Scale", 2013).

    The other calls are cancelled when they are async, and `Hedge` waits for their end. A sync call runs in a
    thread, which cannot be cancelled: it is abandoned, keeps its places in limits until it ends, and counts
    as overdue. While 20 abandoned calls run in the process, no further call is made.

    Raises `ConfigurationError` for invalid options.
    """

    by_position: ClassVar[tuple[str, ...]] = ("after", "max")

    after: Seconds = Field(
        le=LONGEST, description="The time without an answer after which another call starts."
    )
    max: int = Field(default=1, strict=True, ge=1, description="The maximum number of additional calls.")

    if TYPE_CHECKING:

        def __init__(self, after: Duration, max: int = 1) -> None: ...

    def call(self, fn: Callable[..., T], /, *args: Any, **kwargs: Any) -> T:
        """The value of the first successful call of the sync function `fn(*args, **kwargs)`.

        When all fail, the first error is raised, with the others in its notes (PEP 678). Raises
        ConfigurationError for an async function.

        Example:
            >>> Hedge(after=0.8).call(str.upper, "aspirin")
            'ASPIRIN'
        """
        if is_async(fn):
            raise ConfigurationError(f"{name_of(fn)} is async: write `await Hedge(...).acall(...)`")
        return self.within(fn, (), {})(*args, **kwargs)

    async def acall(self, fn: Callable[..., Awaitable[T]], /, *args: Any, **kwargs: Any) -> T:
        """The same, for an async function. Raises ConfigurationError for a sync one.

        Example:
            >>> import asyncio
            >>> async def read(drug: str) -> str:
            ...     return f"{drug}: 100 mg"
            >>> asyncio.run(Hedge(after=0.8).acall(read, "aspirin"))
            'aspirin: 100 mg'
        """
        if not is_async(fn):
            raise ConfigurationError(f"{name_of(fn)} is not an async function: write `Hedge(...).call(...)`")
        return await self.within(fn, (), {})(*args, **kwargs)

    def within(
        self, fn: Callable[..., Any], limits: Sequence[Limit], parameters: Mapping[str, Any]
    ) -> Callable[..., Any]:
        """`call` or `acall` of `fn`, inside these limits. Each further call takes places of its own; if they
        are not free at once, it is not made.

        parameters: the parameters for the limits' names.
        """
        aside = is_async(fn)
        more = fn
        for limit in reversed(limits):
            bound = limit.bind(parameters).model_copy(update={"max_wait": 0.0})
            more = partial(bound.acall if aside else bound.call, more)

        async def arace(*args: Any, **kwargs: Any) -> Any:
            runners = TaskRunners(partial(fn, *args, **kwargs), partial(more, *args, **kwargs))
            try:
                return await adrive(_Race(self, runners).won())
            finally:
                await runners.end()

        def race(*args: Any, **kwargs: Any) -> Any:
            runners = ThreadRunners(partial(fn, *args, **kwargs), partial(more, *args, **kwargs))
            try:
                return drive(_Race(self, runners).won())
            finally:
                runners.end()

        return arace if aside else race


# -- several calls of one function beside each other: async ones in tasks, sync ones in threads


class RunnerOutcome(NamedTuple):
    """The end of a call: its number (from 1), and its value or its error."""

    number: int
    value: Any
    error: BaseException | None


class TaskRunners:
    """Async calls, each in a task."""

    def __init__(self, make: Callable[[], Awaitable[Any]], more: Callable[[], Awaitable[Any]]) -> None:
        self._make, self._more = make, more
        self._tasks: list[asyncio.Task[Any]] = []
        self._running: set[asyncio.Task[Any]] = set()

    @property
    def started(self) -> int:
        return len(self._tasks)

    @property
    def running(self) -> int:
        return len(self._running)

    def start(self) -> None:
        task = asyncio.ensure_future(_await(self._more if self._tasks else self._make))
        self._tasks.append(task)
        self._running.add(task)

    def wait_for_ends(self, patience: float | None) -> Steps[list[RunnerOutcome]]:
        return (yield Invoke(self._wait_for_ends, (patience,)))

    async def _wait_for_ends(self, patience: float | None) -> list[RunnerOutcome]:
        done, self._running = await asyncio.wait(
            self._running, timeout=patience, return_when=asyncio.FIRST_COMPLETED
        )
        return [self._outcome(number, task) for number, task in enumerate(self._tasks, 1) if task in done]

    def _outcome(self, number: int, task: asyncio.Task[Any]) -> RunnerOutcome:
        error = asyncio.CancelledError() if task.cancelled() else task.exception()
        return RunnerOutcome(number, None if error is not None else task.result(), error)

    async def end(self) -> None:
        """Cancel what is still running, and wait for its end."""
        for task in self._running:
            task.cancel()
        await asyncio.gather(*self._running, return_exceptions=True)


async def _await(make: Callable[[], Awaitable[Any]]) -> Any:
    return await make()


class ThreadRunners:
    """Sync calls, each in a thread."""

    def __init__(self, make: Callable[[], Any], more: Callable[[], Any]) -> None:
        self._make, self._more = make, more
        self._calls: list[Call] = []
        self._outcomes = SimpleQueue[RunnerOutcome]()
        self._ended: int = 0

    @property
    def started(self) -> int:
        return len(self._calls)

    @property
    def running(self) -> int:
        return len(self._calls) - self._ended

    def start(self) -> None:
        self._calls.append(start_call(self._run, self.started + 1))

    def _run(self, number: int) -> None:
        if number > 1:
            belongs_to_none()  # it has places of its own
        try:
            outcome = RunnerOutcome(number, (self._make if number == 1 else self._more)(), None)
        except BaseException as error:  # noqa: BLE001 it is raised again in the thread that waits
            self._outcomes.put(RunnerOutcome(number, None, error))
        else:
            self._outcomes.put(outcome)

    def wait_for_ends(self, patience: float | None) -> Steps[list[RunnerOutcome]]:
        yield from ()
        until = None if patience is None else monotonic() + patience
        while True:
            remaining = SLICE_SECONDS if until is None else min(until - monotonic(), SLICE_SECONDS)
            try:
                outcome = self._outcomes.get(timeout=max(remaining, 0.0))
            except Empty:
                if until is not None and monotonic() >= until:
                    return []
            else:
                self._ended += 1
                return [outcome]

    def end(self) -> None:
        """Abandon what is still running: it is overdue until it ends."""
        for call in self._calls:
            abandon(call)


Runners = TaskRunners | ThreadRunners
"""Calls that run beside each other: the first is made by one function, the others by another.

`started` and `running` count them, `start` makes another one. `ended` gives those that have ended; nothing if
none did within `patience` seconds.
"""


@dataclass(slots=True)
class _Race:
    """Several calls; the first success wins."""

    _hedge: Hedge
    _runners: Runners
    _errors: list[RunnerOutcome] = field(default_factory=list[RunnerOutcome])

    def won(self) -> Steps[Any]:
        runners = self._runners
        runners.start()
        try:
            while True:
                outcomes = yield from runners.wait_for_ends(self._hedge.after if self._may_start() else None)
                while outcomes:
                    outcome = outcomes.pop(0)
                    if outcome.error is None:
                        return outcome.value
                    if isinstance(outcome.error, UnawaitedResult):
                        raise outcome.error
                    if outcome.number == 1 or not isinstance(outcome.error, LimitRefused):
                        self._errors.append(outcome)  # a rejected call was not made
                    del outcome  # see `calls.attempt.make_attempt`
                if self._may_start():
                    runners.start()
                elif not runners.running:
                    raise self._error()
        finally:
            self._errors.clear()

    def _may_start(self) -> bool:
        is_over = self._runners.started > self._hedge.max or is_abandoned()
        return not is_over and overdue_calls() < MOST_OVERDUE

    def _error(self) -> BaseException:
        first, *rest = self._errors
        error = cast("BaseException", first.error)
        for other in rest:
            if other.error is not error:
                add_note(error, f"prefect-resilience: hedged call {other.number} failed too: {other.error!r}")
        return error
