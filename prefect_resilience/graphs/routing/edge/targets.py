"""Targets of branches and handlers (functions, tasks, flows, quorums) and their arguments."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, cast, runtime_checkable
from uuid import UUID

from prefect.client.schemas.objects import State, StateDetails
from prefect.flows import Flow
from prefect.states import Completed
from prefect.tasks import Task, task
from prefect.utilities.annotations import quote

from prefect_resilience.base.outcomes import caller_checks_failures, generates
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.graphs.routing.edge.upstream import Ending, Gave, ending_of


class _Nothing:
    """A placeholder for a missing value."""

    def __repr__(self) -> str:
        return "nothing"


NOTHING: Any = _Nothing()


@runtime_checkable
class Asks(Protocol):
    """A target that calls several others, such as a quorum."""

    def ask(self, request: TargetCall) -> Any:
        """Call them and return their common value. Raises if there is none."""
        ...

    def check(self, what: str, request: TargetCall, offers: bool) -> None: ...


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
    if isinstance(target, Asks):
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
    if isinstance(target, Asks):
        return _asked(target, request)
    args, kwargs = arguments(target, request)
    runnable = as_task(target)
    if isinstance(runnable, Task):
        # Prefect must not search these values for futures and states.
        ours = (request.value, *request.named.values())
        args = tuple(_as_is(value, ours) for value in args)
        kwargs = {name: _as_is(value, ours) for name, value in kwargs.items()}
    options: dict[str, Any] = {"wait_for": list(request.after)} if request.after else {}
    with caller_checks_failures():  # this run raises the error if it does not handle it
        return _ending(cast("Any", runnable), args, {**options, **kwargs})


def _ending(run: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Ending:
    outcome: Any = run(*args, return_state=True, **kwargs)
    return ending_of(asyncio.run(outcome) if inspect.iscoroutine(outcome) else outcome)


def _asked(target: Asks, request: TargetCall) -> Ending:
    try:
        return Gave(target.ask(request))
    except Exception as error:  # noqa: BLE001 - the caller handles it
        return ending_of(error)


def _as_is(value: Any, ours: tuple[Any, ...]) -> Any:
    return quote(value) if any(value is own for own in ours) else value


def following(runs: Sequence[UUID]) -> tuple[State[Any], ...]:
    """States for `wait_for`, for arrows from these task runs in the UI, also from failed ones."""
    return tuple(Completed(data=True, state_details=StateDetails(task_run_id=run)) for run in runs)


def as_plain_call(fn: Callable[..., Any], request: TargetCall) -> Any:
    """Call a function outside of a run. A coroutine is run to its end in this thread."""
    args, kwargs = arguments(fn, request)
    outcome = fn(*args, **kwargs)
    return asyncio.run(cast("Any", outcome)) if inspect.iscoroutine(outcome) else outcome
