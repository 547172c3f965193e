"""What a guarded function returned: its result, or something that no guard may take for its result.

The work of an awaitable or of a generator is not done yet. A Prefect state that is not Completed is a
failure. Prefect is not imported here: where it is not loaded, there are no states.
"""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Awaitable, Callable
from contextlib import AbstractContextManager
from contextvars import ContextVar
from functools import partial
from itertools import starmap
from types import AsyncGeneratorType, CoroutineType, GeneratorType, NoneType
from typing import Any, cast

from prefect_resilience.base.process import setting
from prefect_resilience.errors.classify.classify import WORST_FIRST, classify
from prefect_resilience.errors.classify.shapes import state_data
from prefect_resilience.errors.exceptions import ConfigurationError, ResilienceError
from prefect_resilience.errors.secrets.redact import redact

PLAIN: frozenset[type[Any]] = frozenset({NoneType, bool, int, float, str, bytes, dict})
"""Types of results that need no further look: most calls return one of them."""
_LAZY = (GeneratorType, map, filter, starmap)
_UNRUN = (Awaitable, AsyncGeneratorType, *_LAZY)
_DEFERRED = (
    *("concurrent.futures._base.Future", "contextlib._GeneratorContextManagerBase", "dask.delayed.Delayed"),
    *("multiprocessing.pool.ApplyResult", "multiprocessing.pool.IMapIterator"),
    *("prefect.futures.PrefectFuture", "prefect.futures.PrefectFutureList"),
)
"""More classes whose values represent work that may not be done."""
_RETURNED = "__prefect_resilience_returned__"
"""The attribute of an exception with the function that returned it in a state, and what it returned."""


# -- kinds of functions


def _unwrap(fn: Any) -> tuple[Any, Any]:
    """The function behind `functools.partial`, and the method that runs when it is an object."""
    while isinstance(fn, partial):
        fn = cast("Any", fn).func
    return fn, None if isinstance(fn, type) else getattr(fn, "__call__", None)  # noqa: B004


def is_coroutine_function(fn: Any) -> bool:
    """Whether a call of a function, a partial or a callable object returns a coroutine, as far as its
    definition shows."""
    return any(map(inspect.iscoroutinefunction, _unwrap(fn)))


def is_generator_function(fn: Any) -> bool:
    return any(map(inspect.isgeneratorfunction, _unwrap(fn)))


def is_async_generator_function(fn: Any) -> bool:
    return any(map(inspect.isasyncgenfunction, _unwrap(fn)))


def generates(fn: Any) -> bool:
    """Whether a function is a generator, plain or async."""
    return is_generator_function(fn) or is_async_generator_function(fn)


def as_coroutine_function(fn: Any) -> Any:
    """The function in a form that `inspect` and Prefect know as async, if it is async."""
    if not is_coroutine_function(fn) or inspect.iscoroutinefunction(fn):
        return fn

    run = awaiting(fn)
    if not hasattr(fn, "__name__"):
        run.__name__ = run.__qualname__ = type(fn).__name__
    return run


# -- awaitables and generators


@functools.lru_cache(maxsize=1024)
def _is_awaitable(kind: type[Any]) -> bool:
    return issubclass(kind, Awaitable)


def is_awaitable(value: object) -> bool:
    """As `inspect.isawaitable`, and much faster for the second value of a class."""
    kind = type(value)
    return _is_awaitable(kind) or (kind is GeneratorType and inspect.isawaitable(value))


@functools.lru_cache(maxsize=1024)
def _is_unrun(kind: type[Any]) -> bool:
    """Whether the work behind a value of this class may not be done."""
    return issubclass(kind, _UNRUN) or any(
        f"{base.__module__}.{base.__name__}" in _DEFERRED for base in kind.__mro__
    )


@functools.lru_cache(maxsize=1024)
def _may_be_no_result(kind: type[Any]) -> bool:
    return issubclass(kind, (list, tuple, set, Exception)) or _is_unrun(kind) or is_state_class(kind)


def _needs_a_look(value: object) -> bool:
    kind = type(value)
    return kind not in PLAIN and _may_be_no_result(kind)


def has_loop() -> bool:
    """Whether an event loop runs in this thread. Only a process that has imported asyncio has one."""
    running = getattr(sys.modules.get("asyncio"), "_get_running_loop", None)
    return running is not None and running() is not None


def is_cancellation(error: BaseException) -> bool:
    """Whether an event loop cancelled the task: `asyncio.CancelledError`."""
    cancelled = getattr(sys.modules.get("asyncio"), "CancelledError", None)
    return cancelled is not None and isinstance(error, cancelled)


class UnawaitedResult(ConfigurationError):
    """A function that is called as a plain one returned an awaitable or a generator."""

    def __init__(self, value: Any, fn: Any) -> None:
        self.fn: Any = fn
        self._value = value
        name = getattr(_unwrap(fn)[0], "__qualname__", None) or type(fn).__qualname__
        super().__init__(f"{name} returned {_describe(value)}")

    @property
    def is_of_awaitable(self) -> bool:
        return is_awaitable(self._value)

    @property
    def can_go_on(self) -> bool:
        """Whether this thread has an event loop on which the returned awaitable can be awaited."""
        return is_awaitable(self._value) and has_loop()

    def going_on(self) -> Callable[..., Any]:
        """The function as a coroutine function. Its first call is the one that was made."""
        value, self._value = self._value, None
        return awaiting(self.fn, value)

    @property
    def has_begun(self) -> bool:
        """Whether the returned work may have begun."""
        import asyncio

        value: Any = getattr(self._value, "gen", self._value)  # of a context manager
        if isinstance(value, asyncio.Task):
            value = cast("asyncio.Task[Any]", value).get_coro()
        if isinstance(value, CoroutineType):
            return inspect.getcoroutinestate(cast("Any", value)) != inspect.CORO_CREATED
        if isinstance(value, GeneratorType) and value.gi_frame is not None:
            # `Executor.map` and `as_completed` read what has begun elsewhere.
            module = value.gi_frame.f_globals.get("__name__", "").partition(".")[0]
            is_fresh = inspect.getgeneratorstate(cast("Any", value)) == inspect.GEN_CREATED
            return not is_fresh or module in ("asyncio", "concurrent", "multiprocessing")
        unread = isinstance(value, (AsyncGeneratorType, *_LAZY)) or is_awaitable(value)
        return isinstance(value, asyncio.Future) or not unread

    def close(self) -> ConfigurationError:
        """End the returned work if it has not begun: nothing will use its result."""
        value, self._value, self.fn = self._value, None, None
        if isinstance(value, CoroutineType | GeneratorType):
            cast("GeneratorType[Any, Any, Any]", value).close()
        elif hasattr(value, "cancel"):  # a future of asyncio or of an executor
            cast("Any", value).cancel()
        return self

    def __del__(self) -> None:
        if vars(self).get("_value") is not None:
            self.close()


def _describe(value: Any) -> str:
    if isinstance(value, AsyncGeneratorType):
        return "an async generator, which has not run: write `async for item in ...: yield item`"
    if hasattr(value, "__enter__") or hasattr(value, "__aenter__"):
        return "a context manager, which has not been entered: use it in the function, in a `with`"
    name = cast("type[Any]", type(value)).__name__
    if is_awaitable(value):
        kind = "a coroutine" if isinstance(value, CoroutineType) else f"an awaitable {name}"
        return f"{kind}, which is not awaited: declare it `async def`, and write `return await ...` in it"
    if isinstance(value, _LAZY):
        return f"a {name}, which has not run: write `yield from ...`, or return a list"
    return f"a deferred {name}, which may not have run: return its result, as by `.result()`"


def require_completed(value: Any, fn: Any) -> Any:
    """The value, if the work of `fn` is done. Raises UnawaitedResult."""
    if _needs_a_look(value) and _is_unrun(cast("type[Any]", type(value))):
        raise UnawaitedResult(value, fn)
    return value


def require_result(value: Any, fn: Any, of_effect: bool = False) -> Any:
    """The value, if it is a result. Raises UnawaitedResult, or the error of a returned state; of an effect
    also a returned error."""
    if _needs_a_look(value):
        if of_effect and isinstance(value, Exception):
            raise value
        _raise_if_failed(require_completed(value, fn), fn)
    return value


async def last(value: Any) -> Any:
    """The value, after awaiting it, and what it returns, as long as that is an awaitable."""
    while type(value) not in PLAIN and is_awaitable(value):
        value = await value
    return value


def awaiting(fn: Any, *made: Any) -> Callable[..., Any]:
    """The function as a coroutine function. The first call awaits `made`, if it is given."""
    first_result = list(made)

    @functools.wraps(fn)
    async def run(*args: Any, **kwargs: Any) -> Any:
        return await last(first_result.pop() if first_result else fn(*args, **kwargs))

    return run


def settling(
    fn: Callable[..., Any], isasync: bool, named: Any = None, of_effect: bool = False
) -> Callable[..., Any]:
    """The function, whose result must pass `require_result`. `named`: the one in messages, if another."""
    named = fn if named is None else named
    if isasync:

        async def run_async(*args: Any, **kwargs: Any) -> Any:
            return require_result(await last(fn(*args, **kwargs)), named, of_effect)

        checked: Any = run_async
    else:

        def run(*args: Any, **kwargs: Any) -> Any:
            return require_result(fn(*args, **kwargs), named, of_effect)

        checked = run
    # For messages and measurements. `functools.wraps` would cost as much as the rest of an attempt.
    for attribute in ("__name__", "__qualname__"):
        setattr(checked, attribute, getattr(named, attribute, None) or type(named).__name__)
    return checked


# -- states


class StateReturned(ResilienceError):
    """A function returned a state that is not Completed, and that contains no exception."""

    def __init__(self, state: Any) -> None:
        self.state = state
        super().__init__(state.message or f"it returned the state {state.name}")


def is_state_class(kind: type[Any]) -> bool:
    state = getattr(sys.modules.get("prefect.client.schemas.objects"), "State", None)
    return state is not None and issubclass(kind, state)


def is_state(value: Any) -> bool:
    return is_state_class(cast("type[Any]", type(value)))


def _raise_if_failed(value: Any, fn: Any) -> None:
    """Raise the error in a returned state, or in a list, tuple or set of nothing but states, as Prefect reads
    them. Of several errors the worst one."""
    errors = _errors_in(value)
    if errors:
        infos = [classify(error) for error in errors]
        worst = min(range(len(errors)), key=lambda n: (WORST_FIRST.index(infos[n].kind), infos[n].retryable))
        vars(errors[worst])[_RETURNED] = fn, value
        raise errors[worst]


def _errors_in(value: Any) -> list[Exception]:
    if is_state(value):
        if value.type.value == "COMPLETED":
            return []
        data = state_data(value)
        if value.type.value == "CANCELLED" or not isinstance(data, Exception):
            return (value.type.value != "CANCELLED" and _errors_in(data)) or [StateReturned(value)]
        return [data]
    if not isinstance(value, list | tuple | set) or not value:
        return []
    states = cast("list[Any]", value)
    if not is_state(next(iter(states))) or not all(map(is_state, states)):
        return []
    return [error for state in states for error in _errors_in(state)]


def is_failed(value: Any) -> bool:
    """Whether this is a state that is not Completed, or a list of states with such a one."""
    return _needs_a_look(value) and bool(_errors_in(value))


def take_returned(fn: Any, error: BaseException) -> Any:
    """Take from an error the state, or the states, that `fn` returned; None if the error was raised."""
    by, value = vars(error).pop(_RETURNED, (None, None))
    return value if by is fn else None


def not_repeated(error: BaseException) -> str | None:
    """Why a call with this outcome is not repeated by any policy."""
    if isinstance(error, UnawaitedResult):
        return "the function must be declared in another way"
    if isinstance(error, StateReturned) and error.state.type.value not in ("FAILED", "CRASHED"):
        return f"it returned the state {error.state.name}"
    return None


def mask_state(state: Any, error: BaseException, clean: BaseException) -> Any:
    """The returned state, without the secrets in its message and its error."""
    if not is_state(state):
        return state
    changes: dict[str, Any] = {}
    if state.message and (message := redact(state.message)) != state.message:
        changes["message"] = message
    if clean is not error and state_data(state) is error:
        changes["data"] = clean
    return state.model_copy(update=changes) if changes else state


def result_data(value: Any) -> Any:
    """What to keep of a result: the data of a completed state."""
    return state_data(value) if is_state(value) else value


_answered: ContextVar[bool] = ContextVar("prefect_resilience_answered", default=False)


def caller_checks_failures() -> AbstractContextManager[None]:
    """The caller checks each failure of the runs that begin in this block, and raises it if it counts."""
    return setting(_answered, True)


def is_answered_for() -> bool:
    return _answered.get()
