"""What a branch or a handler is: a function, a task, a flow or a quorum, and the arguments it gets."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Protocol, cast, runtime_checkable

from prefect.client.schemas.objects import State, StateDetails
from prefect.flows import Flow
from prefect.states import Completed
from prefect.tasks import Task, task
from prefect.utilities.annotations import quote

from prefect_resilience.errors.exceptions import ConfigurationError, answered_for
from prefect_resilience.graphs.routing.edge.upstream import Ending, Gave, ending_of


class _Nothing:
    """Stands for a value that there is not."""

    def __repr__(self) -> str:
        return "nothing"


NOTHING: Any = _Nothing()


@runtime_checkable
class Asks(Protocol):
    """A target that calls several others, such as a quorum."""

    def ask(self, request: TargetCall) -> Any:
        """Call them, and return the value that they came to; raises when they come to none."""
        ...

    def check(self, what: str, args: tuple[Any, ...], kwargs: Mapping[str, Any], offers: bool) -> None: ...


@dataclass(frozen=True, slots=True)
class TargetCall:
    """What a target is called with: the upstream's value if there is one, and what was written beside it.

    `named` are offered by name to whoever declares them, such as `error`. `after` are states that say which
    task runs the call follows from.
    """

    args: tuple[Any, ...] = ()
    kwargs: Mapping[str, Any] = field(default_factory=dict[str, Any])
    value: Any = NOTHING
    named: Mapping[str, Any] = field(default_factory=dict[str, Any])
    after: tuple[State[Any], ...] = ()


def name_of(target: Any) -> str:
    """How the UI and messages call a target."""
    name = getattr(target, "name", None)
    if not isinstance(name, str):
        inner = getattr(target, "func", target)  # of a functools.partial
        name = getattr(inner, "__name__", None) or type(inner).__name__
    return str(name)


def check_target(
    what: str,
    target: Any,
    args: tuple[Any, ...],
    kwargs: Mapping[str, Any],
    *,
    offers: bool,
    offered: tuple[str, ...] = ("error",),
) -> None:
    """Refuse early what cannot be called later.

    `offers`: there may be a value to hand over; `offered` are the names that are filled in if declared.
    """
    if isinstance(target, Asks):
        target.check(what, args, kwargs, offers)
        return
    if not callable(target):
        raise ConfigurationError(
            f"{what} needs a function or a task to run, not {target!r}: "
            f"for a constant write lambda: {target!r}"
        )
    signature = _signature(target)
    if signature is None:
        return
    asked = _without(signature, _declared(signature, offered, kwargs))
    choices = [(None, *args), args] if offers else [args]
    problems = [problem for choice in choices if (problem := _problem(asked, choice, kwargs))]
    if len(problems) == len(choices):
        raise ConfigurationError(f"{what}: {name_of(target)!r} cannot be called so: {problems[0]}")


def _problem(asked: inspect.Signature, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> str | None:
    try:
        asked.bind(*args, **kwargs)
    except TypeError as error:
        return str(error)
    return None


def _signature(target: Any) -> inspect.Signature | None:
    """The signature as a caller sees it: without the `self` that Prefect fills in for a bound method."""
    fn: Any = target.fn if isinstance(target, (Task, Flow)) else target
    try:
        signature = inspect.signature(fn)
    except (TypeError, ValueError):  # some builtins have none
        return None
    if isinstance(target, Task) and (hasattr(fn, "__prefect_self__") or hasattr(fn, "__prefect_cls__")):
        return signature.replace(parameters=list(signature.parameters.values())[1:])
    return signature


def _declared(signature: inspect.Signature, names: Iterable[str], kwargs: Mapping[str, Any]) -> list[str]:
    """Those of `names` that are parameters, can be given by name, and were not given already."""
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
    """The arguments of the call: the request's value first if there is one and it fits, then those written.

    A parameter of a name that the request offers gets that; where that is None, a default goes before it.
    """
    signature = _signature(target)
    kwargs = dict(request.kwargs)
    given = () if request.value is NOTHING else (request.value,)
    if signature is None:
        return (*given, *request.args), kwargs
    declared = _declared(signature, request.named, kwargs)
    asked = _without(signature, declared)
    fits = _problem(asked, (*given, *request.args), kwargs) is None
    try:
        bound = asked.bind(*(given if fits else ()), *request.args, **kwargs)
    except TypeError as error:
        raise ConfigurationError(f"{name_of(target)!r} cannot be called so: {error}") from None
    filled = dict(bound.arguments)
    for name in declared:
        required = signature.parameters[name].default is inspect.Parameter.empty
        if request.named[name] is not None or required:
            filled[name] = request.named[name]
    ordered = {name: filled[name] for name in signature.parameters if name in filled}
    whole = inspect.BoundArguments(signature, cast("Any", ordered))
    return whole.args, whole.kwargs


def as_task(target: Any) -> Any:
    """A plain function as a task of its name, with one attempt; tasks and flows as they are."""
    if isinstance(target, (Task, Flow)):
        return cast("Any", target)
    return cast("Any", task(name=name_of(target), retries=0)(as_function(target)))


def as_function(target: Callable[..., Any]) -> Callable[..., Any]:
    """What Prefect makes a task of: builtins, partials and other callables in a function around them."""
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
    """Whether calling it gives something to await."""
    if isinstance(target, (Task, Flow)):
        return bool(target.isasync)
    if isinstance(target, partial):
        return is_async(cast("Any", target).func)
    asked = target if inspect.isroutine(target) else getattr(target, "__call__", target)  # noqa: B004
    return inspect.iscoroutinefunction(asked)


def call(target: Any, request: TargetCall) -> Ending:
    """Run a target as a task of its own, inside the run that is going on, and say how it ended.

    Blocks this thread, which must have no event loop going. What crashes it is raised.
    """
    if isinstance(target, Asks):
        return _asked(target, request)
    args, kwargs = arguments(target, request)
    runnable = as_task(target)
    if isinstance(runnable, Task):
        # Values are handed over as they are: nobody is to look for futures and states inside them.
        args, kwargs = _as_is(args, request), _as_is(kwargs, request)
    options: dict[str, Any] = {"wait_for": list(request.after)} if request.after else {}
    with answered_for():  # the run that goes on raises what it does not answer for
        return _ended(cast("Any", runnable), args, {**options, **kwargs})


def _ended(run: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Ending:
    if getattr(run, "isgenerator", False):
        return Gave(_collected(run(*args, **kwargs)))
    outcome: Any = run(*args, return_state=True, **kwargs)
    return ending_of(asyncio.run(outcome) if inspect.iscoroutine(outcome) else outcome)


def _asked(target: Asks, request: TargetCall) -> Ending:
    try:
        return Gave(target.ask(request))
    except Exception as error:  # noqa: BLE001 - how it ended is the caller's to judge
        return ending_of(error)


def _as_is(given: Any, request: TargetCall) -> Any:
    ours = (request.value, *request.named.values())

    def keep(value: Any) -> Any:
        return quote(value) if any(value is known for known in ours) else value

    if isinstance(given, tuple):
        return tuple(keep(value) for value in cast("tuple[Any, ...]", given))
    return {name: keep(value) for name, value in given.items()}


def _collected(chunks: Any) -> list[Any]:
    """What a generator task yields, as Prefect's own `.submit` gives it."""
    if not inspect.isasyncgen(chunks):
        return list(chunks)

    async def collect() -> list[Any]:
        return [chunk async for chunk in chunks]

    return asyncio.run(collect())


def following(runs: list[Any]) -> tuple[State[Any], ...]:
    """States to wait for that draw the arrows from these task runs, however those ended."""
    return tuple(Completed(data=True, state_details=StateDetails(task_run_id=run)) for run in runs)


def as_plain_call(fn: Callable[..., Any], request: TargetCall) -> Any:
    """Call a function outside of any run; a coroutine is run to its end in this thread."""
    args, kwargs = arguments(fn, request)
    outcome = fn(*args, **kwargs)
    return asyncio.run(cast("Any", outcome)) if inspect.iscoroutine(outcome) else outcome
