"""`quorum`: several handlers are asked at once, and enough of them must give the same answer."""

from __future__ import annotations

import asyncio
import contextvars
import queue
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from prefect.context import FlowRunContext, TaskRunContext

from prefect_resilience.base.plain import plain
from prefect_resilience.errors.context import ErrorContext, attach_context
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.graphs.conditions.evaluate import shown
from prefect_resilience.graphs.routing.edge.targets import Request, as_plain_call, call, check_target, name_of
from prefect_resilience.graphs.routing.edge.upstream import (
    Ending,
    Failed,
    Gave,
    NeverRan,
    context_of,
    outside_transactions,
)
from prefect_resilience.graphs.routing.rounds import NoQuorum, same

Key = Callable[[Any], Any]


@dataclass(frozen=True)
class Quorum:
    """Several handlers of which `need` must agree; `quorum` makes one.

    It serves as the handler of `on_error`, as the target of a branch, or by itself: `vote(*args, **kwargs)`
    calls every handler with these arguments, and `await vote.acall(...)` does so without blocking the loop.
    """

    handlers: tuple[Any, ...]
    need: int
    key: Key | None = None

    @property
    def name(self) -> str:
        return f"quorum({', '.join(name_of(handler) for handler in self.handlers)})"

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """The answer that `need` handlers gave. Raises `NoQuorum` as soon as it is out of reach."""
        return self.ask(Request(args, kwargs))

    async def acall(self, *args: Any, **kwargs: Any) -> Any:
        return await asyncio.to_thread(self.ask, Request(args, kwargs))

    def ask(self, request: Request) -> Any:
        """Ask all at once; those that are not needed any more are left to finish by themselves."""
        box: queue.SimpleQueue[tuple[int, Ending | BaseException]] = queue.SimpleQueue()
        for number, handler in enumerate(self.handlers):
            work = partial(_answer, box, number, handler, request)
            threading.Thread(
                target=contextvars.copy_context().run, args=(work,), name=name_of(handler)
            ).start()
        count = _Count(self)
        while (winner := count.winner()) is None:
            if count.hopeless():
                raise count.failure()
            count.add(*box.get())
        return winner.answer

    def check(self, what: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], offers: bool) -> None:
        for handler in self.handlers:
            check_target(what, handler, args, kwargs, offers=offers)


def quorum(*handlers: Any, need: int = 2, key: Key | None = None) -> Quorum:
    """Ask several handlers in parallel; an answer counts when `need` of them gave it.

    handlers: functions, tasks or flows, plain or async. In a run each is a task run of its own.
    need: how many must give the same answer: `len(handlers)` for all, 1 for whoever is first.
    key: what two answers must have in common, as a function of the answer; by default all of it. Answers are
        compared strictly: 1 is neither true nor "1".

    The first of the equal answers is given. `NoQuorum` lists the votes and errors.

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


def _answer(box: queue.SimpleQueue[Any], number: int, handler: Any, request: Request) -> None:
    """One handler's vote, in a thread of its own. Who fails may not roll back the others, or who asked."""
    try:
        with outside_transactions():
            box.put((number, _ending(handler, request)))
    except BaseException as error:  # noqa: BLE001 - whoever asked counts it as an error, and waits no longer
        box.put((number, error))


def _ending(handler: Any, request: Request) -> Ending:
    going_on = FlowRunContext.get() is not None or TaskRunContext.get() is not None
    if going_on or hasattr(handler, "task_key") or isinstance(handler, Quorum):
        return call(handler, request)
    return Gave(as_plain_call(handler, request))


@dataclass
class _Vote:
    """One answer, and who gave it."""

    answer: Any
    mark: Any
    names: list[str] = field(default_factory=list[str])


@dataclass
class _Count:
    """The votes so far."""

    quorum: Quorum
    votes: list[_Vote] = field(default_factory=list[_Vote])
    errors: dict[str, str] = field(default_factory=dict[str, str])
    causes: list[BaseException] = field(default_factory=list[BaseException])
    contexts: list[ErrorContext] = field(default_factory=list[ErrorContext])
    heard: int = 0

    def add(self, number: int, said: Ending | BaseException) -> None:
        self.heard += 1
        name = f"{name_of(self.quorum.handlers[number])}"
        if isinstance(said, Gave):
            said = self._counted(name, said.value) or said
        if isinstance(said, Failed):
            self._failed(number, name, said.context, said.error)
        elif isinstance(said, NeverRan):
            self._failed(number, name, said.context, None)
        elif isinstance(said, BaseException):
            self._failed(number, name, context_of(said), said)

    def _counted(self, name: str, answer: Any) -> BaseException | None:
        try:
            mark = plain(answer if self.quorum.key is None else self.quorum.key(answer))
        except Exception as error:  # noqa: BLE001 - an answer without a key is no answer
            return error
        for vote in self.votes:
            if same(vote.mark, mark):
                vote.names.append(name)
                return None
        self.votes.append(_Vote(answer, mark, [name]))
        return None

    def _failed(self, number: int, name: str, context: ErrorContext, error: BaseException | None) -> None:
        label = name if name not in self.errors else f"{name} ({number + 1})"
        self.errors[label] = context.summary()
        self.contexts.append(context)
        if error is not None:
            self.causes.append(error)

    def winner(self) -> _Vote | None:
        return next((vote for vote in self.votes if len(vote.names) >= self.quorum.need), None)

    def hopeless(self) -> bool:
        left = len(self.quorum.handlers) - self.heard
        return max((len(vote.names) for vote in self.votes), default=0) + left < self.quorum.need

    def failure(self) -> NoQuorum:
        votes: dict[str, tuple[str, ...]] = {}
        for vote in self.votes:
            text = shown(vote.mark)
            votes[text] = (*votes.get(text, ()), *vote.names)
        error = NoQuorum(self.quorum.need, votes, self.errors)
        error.__cause__ = self.causes[0] if self.causes else None
        found = context_of(error)
        if self.contexts:
            found = found.model_copy(update={"cause": self.contexts[0]})
        attach_context(error, found)
        return error
