"""`@resilient`: the guards of a resilient task around a plain function, without a task run."""

from __future__ import annotations

import functools
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Generator, Iterator, Mapping
from contextlib import aclosing, nullcontext
from dataclasses import replace
from types import TracebackType
from typing import Any, ParamSpec, TypeVar, cast, overload

from typing_extensions import Unpack

from prefect_resilience.base.drive import Steps, adrive, drive
from prefect_resilience.base.edge.current_settings import is_enabled
from prefect_resilience.base.naming import shows
from prefect_resilience.base.outcomes import (
    UnawaitedResult,
    awaiting,
    has_loop,
    is_async_generator_function,
    is_coroutine_function,
    is_generator_function,
)
from prefect_resilience.base.policy import nearest
from prefect_resilience.calls.attempt import Held, enter, handle_failure, leave, record_success
from prefect_resilience.calls.edge.call_options import DEFAULTS, ResilienceOptions, as_policy, make_guard
from prefect_resilience.calls.edge.local import (
    LocalRun,
    call_guarded,
    delay_after,
    make_current,
    pause_before_retry,
    value_of,
)
from prefect_resilience.calls.first import FirstAttempt
from prefect_resilience.calls.model import Guard
from prefect_resilience.calls.spans import call_span
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.guards.fallbacks import Memories
from prefect_resilience.guards.retries.policy import DEFAULT_RETRY, Retry

P = ParamSpec("P")
R = TypeVar("R")

OF_A_RUN = ("dead_letter", "policy")
"""The options that need a task run."""


class ResilientOptions(ResilienceOptions, total=False):
    """The options of `resilient`."""

    name: str


SHOWN: dict[str, Any] = {"name": None, **{name: DEFAULTS[name] for name in DEFAULTS if name not in OF_A_RUN}}


@overload
def resilient(fn: Callable[P, R], /) -> Callable[P, R]: ...


@overload
def resilient(fn: None = None, /, **options: Unpack[ResilientOptions]) -> Resilient: ...


@shows(ResilientOptions, SHOWN)
def resilient(fn: Any = None, /, **options: Any) -> Any:
    """Guard a plain function, coroutine, generator or method as `resilient_task` guards a task.

    The options are the same, but there is no task run, and no Prefect API is needed. Each of many calls in
    one task is guarded separately: `@resilient(retry=Retry(attempts=4), circuit="pages", timeout=10)`. `name`
    is the function's name in the log, in the metrics and in the summary of a flow run, which has totals for
    each function.

    A loop retries a block of code, with the options `retry`, `circuit`, `limits`, `classify` and
    `error_budget`:

        for attempt in resilient(retry=3, circuit="ledger", name="book"):
            with attempt:
                book(order)

    `async for attempt in resilient(...)` with `async with attempt:` does the same in a coroutine.

    `dead_letter` and `policy` need a task run and are not available here. Raises ConfigurationError for a
    wrong option.

    Example:
        >>> @resilient(retry=2)
        ... def half(number: int) -> float:
        ...     return number / 2
        >>> half(3)
        1.5
    """
    _check(options)
    guards = Resilient(options)
    return guards if fn is None else guards(fn)


class Resilient:
    """The guards of `resilient(**options)`: a decorator, and a loop over attempts at a block."""

    def __init__(self, options: Mapping[str, Any]) -> None:
        self._name: str | None = options.get("name")
        self._options = {name: value for name, value in options.items() if name != "name"}
        self._block: Guard | None = None

    def __call__(self, fn: Callable[P, R], /) -> Callable[P, R]:
        return cast("Callable[P, R]", _decorate(fn, self._options, self._name))

    def __iter__(self) -> Iterator[Block]:
        return attempts(self._run(isasync=False))

    def __aiter__(self) -> AsyncIterator[Block]:
        return attempts_async(self._run(isasync=True))

    def _run(self, isasync: bool) -> LocalRun:
        if self._block is None:
            check_block(self._options)
            self._block = make_guard(_block, isasync, _retry_of(self._options), self._options)
        return LocalRun(self._name or "block", self._block, (), {})


def _block() -> None:
    """Stands for the code in the block: names of circuits and limits cannot have fields."""


def _retry_of(options: Mapping[str, Any]) -> Retry:
    return as_policy(options["retry"]) if "retry" in options else DEFAULT_RETRY


def _check(options: Mapping[str, Any]) -> None:
    accepted = ["name", *(name for name in DEFAULTS if name not in OF_A_RUN)]
    for name in options:
        if name in OF_A_RUN:
            raise ConfigurationError(f"{name}= needs a task run: use it with @resilient_task")
        if name not in accepted:
            raise ConfigurationError(f"@resilient has no option {name!r}{nearest(name, accepted)}")
    own_name = options.get("name", "name")
    if not isinstance(own_name, str) or not own_name.strip():
        raise ConfigurationError(f"@resilient(name={own_name!r}) is not a name: write name='fetch page'")


def _decorate(fn: Any, options: Mapping[str, Any], name: str | None) -> Any:
    if isinstance(fn, classmethod | staticmethod):
        method = cast("Any", fn)
        return type(method)(_decorate(method.__func__, options, name))
    if isinstance(fn, type) or not callable(fn):
        raise ConfigurationError(f"@resilient guards a function, not {fn!r}")
    if isinstance(getattr(fn, "guard", None), Guard):
        raise ConfigurationError(
            f"{getattr(fn, 'name', fn)!r} is already a resilient task: pass the options to @resilient_task"
        )
    isasync = is_coroutine_function(fn) or is_async_generator_function(fn)
    guard = make_guard(fn, isasync, _retry_of(options), options)
    written: str = getattr(fn, "__qualname__", type(fn).__qualname__)
    name = name or written.rpartition("<locals>.")[2]
    if is_generator_function(fn):
        wrapper = _generator(guard, name)
    elif is_async_generator_function(fn):
        wrapper = _async_generator(guard, name)
    else:
        wrapper = _async(guard, name) if isasync else _sync(guard, name)
    return functools.wraps(fn)(wrapper)


def _memories(guard: Guard) -> Memories | None:
    return Memories() if guard.remembers else None


def _sync(guard: Guard, name: str) -> Callable[..., Any]:
    fn, first, memories = guard.fn, FirstAttempt(guard), _memories(guard)
    awaited: Callable[..., Any] | None = None

    def repeat_awaited(error: UnawaitedResult, run: LocalRun) -> Any:
        """Repeat the call, to be awaited on the running event loop. Without a loop it is rejected."""
        nonlocal awaited
        if error.fn is not fn or not error.can_go_on:
            raise error.close() from None
        awaited = _async(replace(guard, fn=awaiting(fn), isasync=True), name, memories)
        again = _async(replace(guard, fn=error.going_on(), isasync=True), name, memories)
        return again(*run.args, **run.kwargs)

    def call(*args: Any, **kwargs: Any) -> Any:
        if not is_enabled():
            return fn(*args, **kwargs)
        if awaited is not None and has_loop():
            return awaited(*args, **kwargs)
        run = LocalRun(name, guard, args, kwargs, memories)
        around = make_current(run)
        try:
            return first.call(run, args, kwargs, call_guarded)
        except UnawaitedResult as error:
            return repeat_awaited(error, run)
        finally:
            around.var.reset(around)

    return call


def _async(guard: Guard, name: str, memories: Memories | None = None) -> Callable[..., Any]:
    fn, first, memories = guard.fn, FirstAttempt(guard), memories or _memories(guard)

    async def call(*args: Any, **kwargs: Any) -> Any:
        if not is_enabled():
            return await fn(*args, **kwargs)
        run = LocalRun(name, guard, args, kwargs, memories)
        around = make_current(run)
        try:
            return await first.acall(run, args, kwargs, call_guarded)
        finally:
            around.var.reset(around)

    return call


def _generator(guard: Guard, name: str) -> Callable[..., Any]:
    from prefect_resilience.calls.streams import Stream, one_attempt

    def call(*args: Any, **kwargs: Any) -> Generator[Any, Any, Any]:
        if not is_enabled():
            chunks: Generator[Any, Any, Any] = guard.fn(*args, **kwargs)
            return (yield from chunks)
        run = LocalRun(name, guard, args, kwargs)
        with call_span(run, is_current=False):
            while True:
                attempt = Stream(guard, run, time.monotonic())
                try:
                    return value_of((yield from one_attempt(attempt, args, kwargs)))
                except Exception as error:
                    if (delay := delay_after(run, error)) is None:
                        raise
                    failure = error
                try:
                    drive(pause_before_retry(run, delay, failure))
                finally:
                    del failure

    return call


def _async_generator(guard: Guard, name: str) -> Callable[..., Any]:
    from prefect_resilience.calls.streams import Stream, aone_attempt

    async def call(*args: Any, **kwargs: Any) -> AsyncGenerator[Any, None]:
        run = LocalRun(name, guard, args, kwargs)

        async def open_stream() -> Stream:
            return Stream(guard, run, time.monotonic())

        with call_span(run, is_current=False) if is_enabled() else nullcontext():
            while True:
                source = (
                    aone_attempt(open_stream, args, kwargs) if is_enabled() else guard.fn(*args, **kwargs)
                )
                try:
                    async with aclosing(source) as chunks:
                        async for chunk in chunks:
                            yield chunk
                    return
                except Exception as error:
                    if (delay := delay_after(run, error)) is None:
                        raise
                    failure = error
                try:
                    await adrive(pause_before_retry(run, delay, failure))
                finally:
                    del failure

    return call


# -- attempts at a block of code: `for attempt in resilient(...): with attempt: ...`

OF_A_BLOCK = ("retry", "circuit", "limits", "classify", "error_budget")


def check_block(options: Mapping[str, Any]) -> None:
    """Raise ConfigurationError for an option that needs a function to call."""
    for name, value in options.items():
        if name not in OF_A_BLOCK and value not in (None, False):
            raise ConfigurationError(
                f"{name}= needs a function and cannot guard a block: put the code into a function with "
                f"@resilient({name}=...)"
            )


class Block:
    """One attempt at a block, `with attempt:` or `async with attempt:`; its guards are acquired."""

    def __init__(self, run: LocalRun, number: int) -> None:
        self.number: int = number
        """The number of this attempt, from 1."""
        self.failure: Exception | None = None
        """The error after which there is another attempt."""
        self.entered: bool = False
        self._run = run
        self._held: Held = []
        self._began = time.monotonic()

    def acquire(self) -> Steps[bool]:
        """Acquire the guards. False if one of them rejected the attempt and there is another one."""
        if not is_enabled():
            return True
        try:
            yield from enter(self._run.guard, self._run, self._held)
        except Exception as error:
            if not (yield from self.finish(error)):
                raise
            return False
        return True

    def finish(self, error: BaseException | None) -> Steps[bool]:
        """Release the guards. Returns whether the error is swallowed, because another attempt follows."""
        run = self._run
        yield from leave(run.guard, self._held, error)
        if not is_enabled() or (isinstance(error, BaseException) and not isinstance(error, Exception)):
            return False
        if error is None:
            yield from record_success(run.guard, run, None)
            return False
        outcome = yield from handle_failure(run.guard, run, self._began, error)
        if not isinstance(outcome, Exception) or delay_after(run, outcome) is None:
            return False
        self.failure = outcome
        return True

    def release(self) -> Steps[None]:
        """Release what was acquired for a block that was not entered."""
        yield from leave(self._run.guard, self._held, None)

    def must_be_entered(self, how: str) -> None:
        if not self.entered:
            raise ConfigurationError(
                f"the loop did not enter its attempt: put the code inside `{how} attempt:`"
            )

    def __enter__(self) -> Block:
        self.entered = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        return drive(self.finish(error))

    async def __aenter__(self) -> Block:
        self.entered = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        return await adrive(self.finish(error))


def attempts(run: LocalRun) -> Generator[Block, None, None]:
    number = 0
    with call_span(run, is_current=False) if is_enabled() else nullcontext():
        while True:
            number += 1
            block = Block(run, number)
            if drive(block.acquire()):
                try:
                    yield block
                finally:
                    drive(block.release())
                block.must_be_entered("with")
            if block.failure is None:
                return
            drive(pause_before_retry(run, delay_after(run, block.failure) or 0.0, block.failure))


async def attempts_async(run: LocalRun) -> AsyncGenerator[Block, None]:
    number = 0
    with call_span(run, is_current=False) if is_enabled() else nullcontext():
        while True:
            number += 1
            block = Block(run, number)
            if await adrive(block.acquire()):
                try:
                    yield block
                finally:
                    await adrive(block.release())
                block.must_be_entered("async with")
            if block.failure is None:
                return
            await adrive(pause_before_retry(run, delay_after(run, block.failure) or 0.0, block.failure))
