"""`quorum`: several handlers run in parallel, and enough of them must give the same answer."""

from __future__ import annotations

import asyncio
import queue
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any

from prefect.context import FlowRunContext, TaskRunContext

from prefect_resilience.base.process import start_thread
from prefect_resilience.errors.context import attach_context
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.graphs.routing.edge.targets import (
    TargetCall,
    as_plain_call,
    call,
    check_target,
    name_of,
)
from prefect_resilience.graphs.routing.edge.upstream import (
    Ending,
    FailedUpstream,
    Gave,
    NeverRan,
    context_of,
    ending_of,
    outside_transactions,
)
from prefect_resilience.graphs.routing.rounds import NoQuorum, Votes

Key = Callable[[Any], Any]


@dataclass(frozen=True)
class Quorum:
    """Several handlers; `need` of them must agree. Made by `quorum`.

    It can be the handler of `on_error`, the target of a branch, or be called itself: `vote(*args, **kwargs)`
    calls every handler with these arguments, and `await vote.acall(...)` does so without blocking the loop.
    """

    handlers: tuple[Any, ...]
    need: int
    key: Key | None = None

    @property
    def name(self) -> str:
        return f"quorum({', '.join(name_of(handler) for handler in self.handlers)})"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The answer of `need` handlers. Raises `NoQuorum` as soon as no answer can get enough votes."""
        return self.ask(TargetCall(args, kwargs))

    async def acall(self, *args: Any, **kwargs: Any) -> Any:
        return await asyncio.to_thread(self.ask, TargetCall(args, kwargs))

    def ask(self, request: TargetCall) -> Any:
        """Call all handlers in parallel. Handlers that are no longer needed run to their end."""
        box: queue.SimpleQueue[tuple[int, Ending]] = queue.SimpleQueue()
        names = [name_of(handler) for handler in self.handlers]
        for number, handler in enumerate(self.handlers):
            args = (box, number, handler, request)
            start_thread(names[number], _answer, *args, context=copy_context(), daemon=False)
        votes, failures = Votes(self.need, self.key), list[FailedUpstream | NeverRan]()
        for outstanding in range(len(names), -1, -1):
            if (winner := votes.winner) is not None:
                return winner.answer
            if not votes.can_win(outstanding):
                break
            number, ending = box.get()
            name = names[number]
            failure = _counted(votes, name, ending)
            if failure is not None:
                failures.append(failure)
                label = name if name not in votes.errors else f"{name} ({number + 1})"
                votes.errors[label] = failure.context.summary()
        raise _no_quorum(votes, failures)

    def check(self, what: str, request: TargetCall, offers: bool) -> None:
        for handler in self.handlers:
            check_target(what, handler, request, offers=offers)


def quorum(*handlers: Any, need: int = 2, key: Key | None = None) -> Quorum:
    """Call several handlers in parallel; an answer wins when `need` of them gave it.

    handlers: functions, tasks or flows, plain or async. In a run each is a task run of its own.
    need: how many must give the same answer: `len(handlers)` for all, 1 for the first answer.
    key: the part of an answer that is compared, as a function; by default all of it. Comparison is strict: 1
        is neither true nor "1".

    Returns the first of the equal answers. `NoQuorum` lists the votes and errors.

    Example:
        >>> def first(text: str) -> str:
        ...     return "positive"
        >>> def second(text: str) -> str:
        ...     return "positive"
        >>> quorum(first, second, need=2)("a review")
        'positive'
    """
    if not handlers:
        raise ConfigurationError("quorum(...) needs handlers: write quorum(first, second, third, need=2)")
    for handler in handlers:
        if not callable(handler):
            raise ConfigurationError(f"quorum(...) needs functions or tasks, not {handler!r}")
    if isinstance(need, bool) or not isinstance(need, int) or not 1 <= need <= len(handlers):  # pyright: ignore[reportUnnecessaryIsInstance]
        raise ConfigurationError(
            f"quorum(need={need!r}) with {len(handlers)} handlers: write a number from 1 to {len(handlers)}"
        )
    if key is not None and not callable(key):
        raise ConfigurationError(f"quorum(key={key!r}) must be a function of the answer, or left out")
    return Quorum(handlers, need, key)


def _answer(box: queue.SimpleQueue[Any], number: int, handler: Any, request: TargetCall) -> None:
    """One handler's vote, in a thread of its own. Its failure must not roll back other tasks."""
    try:
        with outside_transactions():
            box.put((number, _ending(handler, request)))
    except BaseException as error:  # noqa: BLE001 - counted as an error, so that the quorum does not wait for it
        box.put((number, ending_of(error)))


def _ending(handler: Any, request: TargetCall) -> Ending:
    going_on = FlowRunContext.get() is not None or TaskRunContext.get() is not None
    if going_on or hasattr(handler, "task_key") or isinstance(handler, Quorum):
        return call(handler, request)
    return Gave(as_plain_call(handler, request))


def _counted(votes: Votes, name: str, ending: Ending) -> FailedUpstream | NeverRan | None:
    """Count an answer. Returns the failure if there is no answer, or if `key` raised."""
    if not isinstance(ending, Gave):
        return ending
    try:
        votes.add(name, ending.value)
    except Exception as error:  # noqa: BLE001 - the user's key
        return FailedUpstream(error, context_of(error))
    return None


def _no_quorum(votes: Votes, failures: list[FailedUpstream | NeverRan]) -> NoQuorum:
    error = votes.failure()
    error.__cause__ = next((ending.error for ending in failures if isinstance(ending, FailedUpstream)), None)
    cause = {"cause": failures[0].context} if failures else {}
    attach_context(error, context_of(error).model_copy(update=cause))
    return error
