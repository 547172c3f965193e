"""Fallbacks: other sources of a result when the task itself fails."""

from __future__ import annotations

import inspect
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from typing import Any, Protocol, cast

from prefect_resilience.base.drive import Blocking, Invoke, Steps
from prefect_resilience.base.durations import Duration, seconds_of
from prefect_resilience.base.outcomes import (
    caller_checks_failures,
    generates,
    is_async_generator_function,
    is_coroutine_function,
    require_result,
    result_data,
    take_returned,
)
from prefect_resilience.base.policy import check_parameters, names_without_default, refuse_async
from prefect_resilience.base.process import setting
from prefect_resilience.errors.classify.reach import as_names, names_of
from prefect_resilience.errors.context import ErrorContext
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.guards.timeouts.timeout import with_deadline, within_deadline

When = Callable[[ErrorContext], bool]


@dataclass(frozen=True)
class Answered:
    """The answer of a fallback that tries several sources, and the name of the source that answered."""

    value: Any
    answered_by: str
    degraded: bool = False


@dataclass(frozen=True)
class Fallback:
    """One step of a fallback chain.

    to: a function, or a task, which then has a run of its own in the UI. It gets those of the primary's
        arguments that it names, and the `ErrorContext` if it declares `error`.
    when: the errors for this step: their categories, kinds, codes or exception classes, or a function that
        gets the ErrorContext and returns true or false.
    name: its name in events and notes; the function's name by default.
    degraded: if true, the run ends `Degraded` rather than `Fallback`.
    """

    to: Callable[..., Any]
    when: When | tuple[str, ...] | None = None
    name: str = ""
    degraded: bool = False
    max_age: float | None = field(default=None, repr=False)

    def __post_init__(self) -> None:
        if not callable(self.to):
            raise ConfigurationError(
                f"a fallback must be a function or a task, not {self.to!r}; "
                f"for a constant write Fallback.value({self.to!r})"
            )
        if not self.name:
            object.__setattr__(self, "name", _name_of(self.to))
        if self.when is not None and (isinstance(self.when, type) or not callable(self.when)):
            object.__setattr__(self, "when", _names(self.name, self.when))

    @classmethod
    def value(cls, value: Any, *, when: Any = None, name: str = "value", degraded: bool = True) -> Fallback:
        """Answer with a constant.

        Example:
            >>> Fallback.value("unknown", when="transient").name
            'value'
        """
        return cls(_Constant(value), when=when, name=name, degraded=degraded)

    @classmethod
    def last_known_good(
        cls, max_age: Duration | None = None, *, when: Any = None, degraded: bool = True
    ) -> Fallback:
        """Answer with the last result of the same call, if it is at most `max_age` old (seconds, or "1h").

        Good results are kept in the task's result storage, one for each set of arguments.
        """
        seconds = seconds_of(max_age)
        if max_age is not None and (seconds is None or seconds <= 0):
            raise ConfigurationError(
                f'Fallback.last_known_good(max_age={max_age!r}): write seconds above 0, "1h", or None'
            )
        return cls(last_known_good, when=when, degraded=degraded, max_age=seconds)

    @property
    def recalls(self) -> bool:
        """Whether this step answers with an earlier result of the primary."""
        return self.to is last_known_good

    @property
    def is_task(self) -> bool:
        """Whether this step is a task, so that its call is a run of its own."""
        return hasattr(self.to, "submit") and hasattr(self.to, "task_key")

    @property
    def isasync(self) -> bool:
        """Whether this step is awaited."""
        return is_async(self.to)

    def applies(self, context: ErrorContext, error: BaseException | None = None) -> bool:
        """Whether this step is for that error. A `when` that raises counts as false."""
        if self.when is None:
            return True
        if callable(self.when):
            return bool(self.when(context))
        return not names_of(context, error).union(context.categories).isdisjoint(self.when)

    def arguments(
        self, parameters: Mapping[str, Any], context: ErrorContext
    ) -> tuple[list[Any], dict[str, Any]]:
        """Those of the primary's arguments that the target names, positional and by keyword.

        `parameters` are by name; those of a `**kwargs` are on the same level.
        """
        wanted = inspect.signature(self.to).parameters
        return arguments_by_name(wanted, {"error": context, **parameters}, parameters)

    def check_for(self, primary: Callable[..., Any], *, isasync: bool) -> None:
        """Raise ConfigurationError, at decoration, for a step that could not be called later."""
        if self.isasync and not isasync:
            refuse_async(f"fallback {self.name!r}", primary)
        if self.recalls and generates(primary):
            raise ConfigurationError(
                f"Fallback.last_known_good() needs a call with one result, but {_name_of(primary)!r} is a "
                f"generator: its chunks are not kept"
            )
        names = names_without_default(inspect.signature(self.to).parameters.values())
        check_parameters(f"fallback {self.name!r} needs the parameter", names, primary, ("error",))


def arguments_by_name(
    wanted: Mapping[str, inspect.Parameter],
    offered: Mapping[str, Any],
    others: Mapping[str, Any],
    first: tuple[Any, ...] = (),
) -> tuple[list[Any], dict[str, Any]]:
    """The arguments for a function: `first`, those in `offered` that it names, `others` for `**kwargs`."""
    args: list[Any] = list(first)
    kwargs: dict[str, Any] = {}
    for name, parameter in list(wanted.items())[len(first) :]:
        if parameter.kind is parameter.VAR_KEYWORD:
            kwargs |= {key: value for key, value in others.items() if key not in kwargs}
        elif parameter.kind is parameter.VAR_POSITIONAL or name not in offered:
            continue
        elif parameter.kind is parameter.POSITIONAL_ONLY:
            args.append(offered[name])
        else:
            kwargs[name] = offered[name]
    return args, kwargs


@dataclass(frozen=True)
class _Constant:
    held: Any

    def __call__(self) -> Any:
        return self.held


def last_known_good() -> Any:
    """A placeholder for an earlier result: the chain recalls that instead of calling this."""
    raise LookupError("no earlier result is kept for this call")


def as_fallbacks(value: Any) -> tuple[Fallback, ...]:
    """The steps from a value of `fallback=`: one or several functions, tasks or `Fallback`s."""
    if value is None:
        return ()
    items = cast("Iterable[Any]", value if isinstance(value, (list, tuple)) else [value])
    return tuple(item if isinstance(item, Fallback) else Fallback(item) for item in items)


def _names(name: str, when: Any) -> tuple[str, ...]:
    try:
        return as_names(when)
    except ValueError as error:
        raise ConfigurationError(f"Fallback({name}, when=...): {error}") from None


def is_async(target: Any) -> bool:
    """Whether a call of this function, task, agent chain or callable object is awaited."""
    if isinstance(getattr(target, "isasync", None), bool):
        return target.isasync
    return is_coroutine_function(target) or is_async_generator_function(target)


def _name_of(target: Any) -> str:
    return getattr(target, "name", None) or getattr(target, "__name__", None) or type(target).__name__


def despite_doubt(fallbacks: tuple[Fallback, ...]) -> tuple[Fallback, ...]:
    """The fallbacks with "InDoubt" in `when`. If a side effect may have happened, other fallbacks could
    repeat it."""
    steps: list[tuple[Fallback, Any]] = [(step, step.when) for step in fallbacks]
    return tuple(
        replace(step, when=None)
        for step, when in steps
        if isinstance(when, tuple) and any(name.endswith("InDoubt") for name in cast("tuple[str, ...]", when))
    )


_handling: ContextVar[tuple[Callable[..., Any], ...]] = ContextVar("handling", default=())
"""The functions that failed or run as a fallback in this context: none is used as its own fallback."""


class Memory(Protocol):
    """The storage of a task's last good results. Both methods may block."""

    def remember(self, value: Any) -> None: ...

    def recall(self, max_age: float | None) -> Any:
        """The last good result of the same call; raises LookupError if none is at most `max_age` old."""


MOST_REMEMBERED = 1_000


class Memories:
    """The newest 1,000 good results of a function in this process, by the call's arguments."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, tuple[float, Any]] = OrderedDict()

    def keep(self, key: str | None, value: Any) -> None:
        if key is None:
            return
        self._kept[key] = (time.monotonic(), value)
        self._kept.move_to_end(key)
        while len(self._kept) > MOST_REMEMBERED:
            self._kept.popitem(last=False)

    def find(self, key: str | None, max_age: float | None) -> Any:
        """Raises LookupError if there is none, or if it is too old."""
        if key is None or key not in self._kept:
            raise LookupError("no earlier result is kept for these arguments")
        at, value = self._kept[key]
        age = time.monotonic() - at
        if max_age is not None and age > max_age:
            raise LookupError(f"the last good result is {age:.0f} s old, more than max_age={max_age:g} s")
        return value


@dataclass(frozen=True, slots=True)
class Answer:
    """The answer of a fallback in place of the primary's result."""

    value: Any
    fallback: Fallback


@dataclass(slots=True)
class Chain:
    """The steps of one task, and the ones that failed in one run."""

    fallbacks: tuple[Fallback, ...]
    primary: Callable[..., Any]
    isasync: bool
    failures: list[tuple[str, str]] = field(default_factory=list[tuple[str, str]])

    def answer(
        self, parameters: Mapping[str, Any], context: ErrorContext, memory: Memory, error: BaseException
    ) -> Steps[Answer | None]:
        """The first answer that a step gives, or None; the steps that failed are kept in `failures`."""
        handling = (*_handling.get(), _function(self.primary))
        for fallback in self.fallbacks:
            target = _function(fallback.to)
            if target in handling:
                continue
            with setting(_handling, (*handling, target)):
                try:
                    if fallback.applies(context, error):
                        with caller_checks_failures():
                            value = yield self._ask(fallback, parameters, context, memory)
                        if not generates(self.primary):
                            require_result(value, fallback.to)
                        return _answer(result_data(value), fallback)
                except Exception as failure:  # noqa: BLE001 - any error leads to the next step
                    take_returned(fallback.to, failure)
                    self.failures.append((fallback.name, repr(failure)))
        return None

    def _ask(
        self, fallback: Fallback, parameters: Mapping[str, Any], context: ErrorContext, memory: Memory
    ) -> Invoke | Blocking:
        timeout = None if isinstance(fallback.to, _Constant) else within_deadline(None)
        if fallback.recalls:
            return Blocking(memory.recall, (fallback.max_age,))
        args, kwargs = fallback.arguments(parameters, context)
        # A plain function under an async task would block the event loop, so it runs in a thread.
        kind = Blocking if self.isasync and not fallback.isasync else Invoke
        has_own_bound = fallback.is_task or generates(fallback.to)
        fn = with_deadline(None if has_own_bound else timeout, fallback.to, fallback.isasync, fallback.to)
        return kind(fn, tuple(args), kwargs)


def _answer(value: Any, fallback: Fallback) -> Answer:
    if not isinstance(value, Answered):
        return Answer(value, fallback)
    name = f"{fallback.name}: {value.answered_by}"
    return Answer(value.value, replace(fallback, name=name, degraded=fallback.degraded or value.degraded))


def _function(target: Callable[..., Any]) -> Callable[..., Any]:
    """The function itself, without the wrappers of tasks and decorators."""
    return inspect.unwrap(getattr(target, "fn", target))
