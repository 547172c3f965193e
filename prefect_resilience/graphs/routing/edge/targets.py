"""Targets of branches and handlers (functions, tasks, flows, quorums) and their arguments."""

from __future__ import annotations

import asyncio
import inspect
import queue
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast
from uuid import UUID

from prefect.client.schemas.objects import State, StateDetails
from prefect.context import FlowRunContext, TaskRunContext
from prefect.flows import Flow
from prefect.states import Completed
from prefect.tasks import Task, task
from prefect.utilities.annotations import quote

from prefect_resilience.base.naming import UNSET
from prefect_resilience.base.outcomes import caller_checks_failures, generates
from prefect_resilience.base.process import start_thread
from prefect_resilience.errors.context import attach_context
from prefect_resilience.errors.exceptions import ConfigurationError
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

NOTHING: Any = UNSET
"""A placeholder for a missing value."""


@dataclass(frozen=True, slots=True)
class TargetCall:
    """The arguments of a call: the upstream's value if there is one, and the given arguments.

    `named` are passed to targets that declare a parameter of that name, such as `error`. `after` has the
    states of the task runs before the call.
    """

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    value: Any = NOTHING
    named: Mapping[str, Any] = field(default_factory=dict[str, Any])
    after: tuple[State[Any], ...] = ()


def name_of(target: Any) -> str:
    """The name of a target in the UI and in messages."""
    name = getattr(target, "name", None)
    if not isinstance(name, str):
        inner = getattr(target, "func", target)  # of a functools.partial
        name = getattr(inner, "__name__", None) or type(inner).__name__
    return str(name)


def check_target(
    what: str, target: Any, request: TargetCall, *, offers: bool, offered: Iterable[str] = ("error",)
) -> None:
    """Raise ConfigurationError for a target that cannot be called with the arguments of `request`.

    `offers`: there may be a value for the first argument. `offered`: names that are filled in if declared.
    """
    if isinstance(target, Quorum):
        target.check(what, request, offers)
        return
    if not callable(target):
        raise ConfigurationError(
            f"{what} needs a function or a task to run, not {target!r}: "
            f"for a constant write lambda: {target!r}"
        )
    if generates(getattr(target, "fn", target)):
        raise ConfigurationError(f"{what}: {name_of(target)!r} is a generator: return a list instead")
    signature = _signature(target)
    if signature is None:
        return
    remaining = _without(signature, _declared(signature, offered, request.kwargs))
    choices = [(None, *request.args), request.args] if offers else [request.args]
    problems = [problem for choice in choices if (problem := _problem(remaining, choice, request.kwargs))]
    if len(problems) == len(choices):
        raise ConfigurationError(f"{what}: wrong arguments for {name_of(target)!r}: {problems[0]}")


def _problem(asked: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    try:
        asked.bind(*args, **kwargs)
    except TypeError as error:
        return str(error)
    return None


def _signature(target: Any) -> inspect.Signature | None:
    """The signature for a caller, without the `self` that Prefect fills in for a bound method."""
    fn: Any = target.fn if isinstance(target, (Task, Flow)) else target
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):  # some builtins have none
        return None
    if isinstance(target, Task) and (hasattr(fn, "__prefect_self__") or hasattr(fn, "__prefect_cls__")):
        return signature.replace(parameters=list(signature.parameters.values())[1:])
    return signature


def _declared(signature: inspect.Signature, names: Iterable[str], kwargs: Mapping[str, Any]) -> list[str]:
    """The `names` that are parameters, can be given by name, and are not given yet."""
    parameters = signature.parameters
    return [
        name
        for name in names
        if name in parameters
        and name not in kwargs
        and parameters[name].kind in (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
    ]


def _without(signature: inspect.Signature, names: list[str]) -> inspect.Signature:
    return signature.replace(parameters=[p for name, p in signature.parameters.items() if name not in names])


def arguments(target: Any, request: TargetCall) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of the call: the value first if there is one and it fits, then the given ones.

    A parameter with an offered name gets the offered value, but a default is preferred to None.
    """
    signature = _signature(target)
    kwargs = dict(request.kwargs)
    first = () if request.value is NOTHING else (request.value,)
    if signature is None:
        return (*first, *request.args), kwargs
    declared = _declared(signature, request.named, kwargs)
    remaining = _without(signature, declared)
    fits = _problem(remaining, (*first, *request.args), kwargs) is None
    try:
        bound = remaining.bind(*(first if fits else ()), *request.args, **kwargs)
    except TypeError as error:
        raise ConfigurationError(f"wrong arguments for {name_of(target)!r}: {error}") from None
    filled = dict(bound.arguments)
    for name in declared:
        required = signature.parameters[name].default is inspect.Parameter.empty
        if request.named[name] is not None or required:
            filled[name] = request.named[name]
    ordered = {name: filled[name] for name in signature.parameters if name in filled}
    whole = inspect.BoundArguments(signature, cast("Any", ordered))
    return whole.args, whole.kwargs


def as_task(target: Any) -> Any:
    """A plain function as a task of its name, with one attempt; tasks and flows unchanged."""
    if isinstance(target, (Task, Flow)):
        return cast("Any", target)
    return cast("Any", task(name=name_of(target), retries=0)(as_function(target)))


def as_function(target: Callable[..., Any]) -> Callable[..., Any]:
    """A function for Prefect's `task`: builtins, partials and other callables are wrapped in one."""
    if inspect.isfunction(target) or inspect.ismethod(target):
        return target
    if is_async(target):

        async def acall(*args: Any, **kwargs: Any) -> Any:
            return await target(*args, **kwargs)

        function: Callable[..., Any] = acall
    else:

        def call(*args: Any, **kwargs: Any) -> Any:
            return target(*args, **kwargs)

        function = call
    function.__name__ = function.__qualname__ = name_of(target)
    signature = _signature(target)
    if signature is not None:
        setattr(function, "__signature__", signature)  # noqa: B010
    return function


def is_async(target: Any) -> bool:
    """Whether a call returns an awaitable."""
    if isinstance(target, (Task, Flow)):
        return bool(target.isasync)
    if isinstance(target, partial):
        return is_async(cast("Any", target).func)
    function = target if inspect.isroutine(target) else getattr(target, "__call__", target)  # noqa: B004
    return inspect.iscoroutinefunction(function)


def call(target: Any, request: TargetCall) -> Ending:
    """Run a target as a task of its own inside the current run, and return its ending.

    Blocks this thread, which must have no running event loop. Crashes are raised.
    """
    if isinstance(target, Quorum):
        try:
            return Gave(target.ask(request))
        except Exception as error:  # noqa: BLE001 - the caller handles it
            return ending_of(error)
    args, kwargs = arguments(target, request)
    runnable = as_task(target)
    if isinstance(runnable, Task):
        # Prefect must not search these values for futures and states.
        ours = (request.value, *request.named.values())
        args = tuple(_as_is(value, ours) for value in args)
        kwargs = {name: _as_is(value, ours) for name, value in kwargs.items()}
    options: dict[str, Any] = {"wait_for": list(request.after)} if request.after else {}
    with caller_checks_failures():  # this run raises the error if it does not handle it
        outcome = cast("Any", runnable)(*args, return_state=True, **{**options, **kwargs})
        return ending_of(_to_its_end(outcome))


def _to_its_end(outcome: Any) -> Any:
    """The outcome of a call. A coroutine is run to its end in this thread."""
    return asyncio.run(outcome) if inspect.iscoroutine(outcome) else outcome


def _as_is(value: Any, ours: tuple[Any, ...]) -> Any:
    return quote(value) if any(value is own for own in ours) else value


def following(runs: Sequence[UUID]) -> tuple[State[Any], ...]:
    """States for `wait_for`, for arrows from these task runs in the UI, also from failed ones."""
    return tuple(Completed(data=True, state_details=StateDetails(task_run_id=run)) for run in runs)


# -- quorums: several handlers run in parallel, and enough of them must give the same answer

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
            if isinstance(ending, Gave):
                try:
                    votes.add(name, ending.value)
                    continue
                except Exception as error:  # noqa: BLE001 - the user's key
                    ending = FailedUpstream(error, context_of(error))
            failures.append(ending)
            label = name if name not in votes.errors else f"{name} ({number + 1})"
            votes.errors[label] = ending.context.summary()
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
            box.put((number, _vote(handler, request)))
    except BaseException as error:  # noqa: BLE001 - counted as an error, so that the quorum does not wait for it
        box.put((number, ending_of(error)))


def _vote(handler: Any, request: TargetCall) -> Ending:
    """The ending of one handler. Outside of a run, a function is called as it is."""
    going_on = FlowRunContext.get() is not None or TaskRunContext.get() is not None
    if going_on or hasattr(handler, "task_key") or isinstance(handler, Quorum):
        return call(handler, request)
    args, kwargs = arguments(handler, request)
    return Gave(_to_its_end(handler(*args, **kwargs)))


def _no_quorum(votes: Votes, failures: list[FailedUpstream | NeverRan]) -> NoQuorum:
    error = votes.failure()
    error.__cause__ = next((ending.error for ending in failures if isinstance(ending, FailedUpstream)), None)
    cause = {"cause": failures[0].context} if failures else {}
    attach_context(error, context_of(error).model_copy(update=cause))
    return error
