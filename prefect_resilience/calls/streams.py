"""Generators: an attempt that opens before the first chunk and is settled after the last one.

A stream that broke after its first chunk is neither restarted nor replaced by a fallback, because its reader
would get the beginning twice. `restart_stream=True` allows it. A reader that stops early is not a failure.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Generator, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar, cast

from prefect_resilience.base.deadlines import CallDeadline, limit_steps
from prefect_resilience.base.drive import Steps, adrive, drive
from prefect_resilience.base.outcomes import require_result
from prefect_resilience.calls.attempt import Held, enter, handle_failure, handle_result, leave, record_success
from prefect_resilience.calls.judging import annotate, fallback_message, report_failure, report_fallback
from prefect_resilience.calls.model import Guard, RunContext, Substitute, deadline_of
from prefect_resilience.errors.context import PartialOutput, attach_context, attached_context
from prefect_resilience.errors.secrets.redact import add_note
from prefect_resilience.guards.fallbacks import Chain, Fallback
from prefect_resilience.guards.partials import partial_output
from prefect_resilience.guards.retries.policy import NO_RETRY, Verdict
from prefect_resilience.guards.timeouts.stream import aiterate_with_deadline, iterate_with_deadline

T = TypeVar("T")

MOST_CHARACTERS = 100_000
MOST_CHUNKS = 10_000
"""How much of a stream is kept in case it breaks; of a longer stream, the beginning."""


class ChunksSoFar:
    """The chunks that a stream has yielded, within bounds. True once there is a chunk."""

    __slots__ = ("_kept", "_left", "number")

    def __init__(self) -> None:
        self.number: int = 0
        self._kept: list[Any] = []
        self._left = MOST_CHARACTERS

    def __bool__(self) -> bool:
        return self.number > 0

    def add(self, chunk: Any) -> None:
        self.number += 1
        if self._left > 0 and len(self._kept) < MOST_CHUNKS:
            self._kept.append(chunk)
            self._left -= len(cast("str", chunk)) if isinstance(chunk, str | bytes) else 1

    def as_output(self) -> PartialOutput | None:
        """One text if all chunks are texts, else a list of the chunks as plain data. Secrets are masked."""
        texts = all(isinstance(chunk, str) for chunk in self._kept)
        output = partial_output("".join(self._kept) if texts else self._kept)
        if output is None or self.number == len(self._kept) or output.truncated:
            return output
        return output.model_copy(update={"truncated": True, "original_size": self.number})


_END: Any = object()


@dataclass(slots=True)
class Stream:
    """One attempt of a generator."""

    guard: Guard
    run: RunContext
    began: float
    handed_on: ChunksSoFar = field(default_factory=ChunksSoFar)
    waited: float = 0.0
    """Seconds spent waiting for the generator, without the time that its reader takes between chunks."""
    held: Held = field(default_factory=Held)
    around: AbstractContextManager[None] = field(default_factory=nullcontext)
    """Makes the attempt's span the current one while the generator runs, not while its reader does."""
    limit: CallDeadline | None = field(init=False)

    def __post_init__(self) -> None:
        self.limit = deadline_of(self.guard, self.run)

    def in_time(self, steps: Steps[T]) -> Steps[T]:
        """The steps within the deadline of the call."""
        return steps if self.limit is None else limit_steps(self.limit, steps)

    def open(self) -> Steps[None]:
        self.around = (yield from enter(self.guard, self.run, self.held, is_current=False)) or self.around

    def close(self, error: BaseException | None) -> Steps[None]:
        yield from leave(self.guard, self.held, error, took=self.waited)

    def abort(self, error: BaseException) -> Steps[None]:
        """The generator was ended from outside: by its reader, a cancellation, or Prefect's own
        `timeout_seconds`. After a timeout the engine asks whether to retry."""
        if self.handed_on and not self.guard.restart_stream and not isinstance(error, GeneratorExit):
            self.run.record(self.began).must_not_restart = True
        yield from self.close(error)

    def finish(self) -> Steps[None]:
        yield from self.close(None)
        yield from record_success(self.guard, self.run, None)

    def broke(self, error: Exception) -> Steps[Any]:
        """The substitute to continue with, the error to raise, or the failed state to return."""
        yield from self.close(error)
        guard = self.guard
        if self.handed_on and not guard.restart_stream:
            guard = replace(guard, retry=NO_RETRY, fallbacks=())
            add_note(error, _NOT_RESTARTED)
        outcome = yield from handle_result(guard, self.run, self.began, error)
        if isinstance(outcome, BaseException):
            self._tell_partial(outcome)
        return outcome

    def substitute_broke(
        self, outcome: Substitute, broken: ChunksSoFar, failure: Exception, primary: BaseException
    ) -> Steps[Substitute | BaseException]:
        """A fallback's own stream broke. Without any chunk from it, the next fallback is used."""
        name, context = outcome.answer.fallback.name, outcome.context
        if broken and not self.guard.restart_stream:
            add_note(failure, _NOT_RESTARTED)
            add_note(failure, f"prefect-resilience: fallback {name!r} was used, after: {context.summary()}")
            guard = replace(self.guard, retry=NO_RETRY, fallbacks=())
            self.handed_on = broken
            error = cast("BaseException", (yield from handle_failure(guard, self.run, self.began, failure)))
            self._tell_partial(error)
            return error
        chain = Chain(self._after(outcome.answer.fallback), self.guard.fn, self.guard.isasync)
        chain.failures.append((name, repr(failure)))
        answer = yield from chain.answer(self.run.parameters, context, self.run, primary)
        if answer is not None:
            report_fallback(self.run, context, answer, failure)
            return Substitute(answer, context, fallback_message(context, answer))
        verdict = Verdict(False, 0.0, "every fallback failed")
        attach_context(primary, context)
        annotate(primary, context, verdict, chain)
        report_failure(self.run, context, verdict, primary)
        return primary

    def _after(self, used: Fallback) -> tuple[Fallback, ...]:
        steps = self.guard.fallbacks
        number = next((n for n, step in enumerate(steps) if step is used), len(steps))
        return steps[number + 1 :]

    def _tell_partial(self, error: BaseException) -> None:
        """Put the chunks so far into the error's context, unless the task itself kept a partial output."""
        context = attached_context(error)
        if context is not None and context.partial_output is None and self.handed_on:
            attach_context(error, context.model_copy(update={"partial_output": self.handed_on.as_output()}))

    def source(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """The user's generator with its deadlines."""
        chunks = self.guard.fn(*args, **kwargs)
        timeout = self.guard.timeout
        total, idle = (None, None) if timeout is None else (timeout.total, timeout.idle)
        if self.guard.isasync:
            return aiterate_with_deadline(chunks, total, idle, self.limit)
        if timeout is None and self.limit is None:
            return chunks
        return iterate_with_deadline(chunks, total, idle, self.limit)

    def hand_on(self, chunk: Any) -> None:
        """Note a chunk that the reader gets."""
        self.handed_on.add(chunk)
        for guarding, ticket in self.held:
            if guarding.metered:
                ticket.see(chunk)

    def count_chunks(self, source: Generator[Any, Any, Any]) -> Generator[Any, Any, Any]:
        """The chunks of a generator, counted. Values that are sent in are passed on to it."""
        sent: Any = None
        try:
            while True:
                since = time.monotonic()
                with self.around:
                    chunk = source.send(sent)
                self.waited += time.monotonic() - since
                self.hand_on(chunk)
                sent = yield chunk
        except StopIteration as stop:
            return stop.value
        finally:
            source.close()

    async def acount_chunks(self, source: AsyncGenerator[Any, Any]) -> AsyncGenerator[Any, None]:
        try:
            while True:
                since = time.monotonic()
                with self.around:
                    chunk = await anext(source, _END)
                if chunk is _END:
                    return
                self.waited += time.monotonic() - since
                self.hand_on(chunk)
                yield chunk
        finally:
            await source.aclose()


_NOT_RESTARTED = (
    "prefect-resilience: the stream broke after its consumer got a chunk, so it is not restarted; set "
    "restart_stream=True to allow it"
)


def one_attempt(attempt: Stream, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Generator[Any, Any, Any]:
    """The chunks of one attempt, or of a fallback; its return value, or the `Substitute`."""
    try:
        drive(attempt.in_time(attempt.open()))
        result = yield from attempt.count_chunks(attempt.source(args, kwargs))
        require_result(result, attempt.guard.fn)
    except Exception as error:  # noqa: BLE001 - it is raised again, or a fallback answers
        return (yield from _instead(attempt, error))
    except BaseException as error:
        drive(attempt.abort(error))
        raise
    drive(attempt.finish())
    return result


def _instead(attempt: Stream, error: Exception) -> Generator[Any, Any, Any]:
    """The chunks of the fallbacks. Raises the error if no fallback answers."""
    outcome: Substitute | BaseException | None = None
    try:
        outcome = drive(attempt.in_time(attempt.broke(error)))
        while isinstance(outcome, Substitute):
            chunks = ChunksSoFar()
            try:
                for chunk in _chunks(outcome.answer.value, attempt.limit):
                    chunks.add(chunk)
                    yield chunk
                return outcome
            except Exception as failure:  # noqa: BLE001 - any error leads to the next fallback
                outcome = drive(attempt.in_time(attempt.substitute_broke(outcome, chunks, failure, error)))
        if not isinstance(outcome, BaseException):
            return outcome
        raise outcome if outcome is error else _from_cause(outcome)
    finally:
        del error, outcome  # see `calls.attempt.make_attempt`


async def aone_attempt(
    begun: Callable[[], Awaitable[Stream]], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> AsyncGenerator[Any, None]:
    """The async version of `one_attempt`. `begun` is called at the first step, in the reader's context."""
    attempt = await begun()
    instead: AsyncGenerator[Any, None] | None = None
    chunks: AsyncGenerator[Any, None] | None = None
    try:
        await adrive(attempt.in_time(attempt.open()))
        chunks = attempt.acount_chunks(attempt.source(args, kwargs))
        async for chunk in chunks:
            yield chunk
    except Exception as error:  # noqa: BLE001 - it is raised again, or a fallback answers
        instead = _ainstead(attempt, error)
    except BaseException as error:
        if chunks is not None:
            await chunks.aclose()
        await adrive(attempt.abort(error))
        raise
    if instead is None:
        await adrive(attempt.finish())
        return
    async for chunk in instead:
        yield chunk


async def _ainstead(attempt: Stream, error: Exception) -> AsyncGenerator[Any, None]:
    """The async version of `_instead`."""
    outcome: Substitute | BaseException = error
    try:
        outcome = await adrive(attempt.in_time(attempt.broke(error)))
        while isinstance(outcome, Substitute):
            chunks = ChunksSoFar()
            try:
                async for chunk in _achunks(outcome.answer.value, attempt.limit):
                    chunks.add(chunk)
                    yield chunk
                return
            except Exception as failure:  # noqa: BLE001 - any error leads to the next fallback
                steps = attempt.substitute_broke(outcome, chunks, failure, error)
                outcome = await adrive(attempt.in_time(steps))
        raise outcome if outcome is error else _from_cause(outcome)
    finally:
        del error, outcome


def _from_cause(error: BaseException) -> BaseException:
    """The error as `raise error from error.__cause__` would raise it."""
    error.__suppress_context__ = True
    return error


def _chunks(value: Any, limit: CallDeadline | None) -> Iterator[Any]:
    """A fallback's answer as chunks: the items of an iterator, or the single value."""
    if limit is not None and isinstance(value, Generator):
        value = iterate_with_deadline(cast("Generator[Any, Any, Any]", value), limit=limit)
    if isinstance(value, Iterator):
        yield from cast("Iterator[Any]", value)
    else:
        yield value


async def _achunks(value: Any, limit: CallDeadline | None) -> AsyncIterator[Any]:
    if limit is not None and isinstance(value, AsyncGenerator):
        value = aiterate_with_deadline(cast("AsyncGenerator[Any, Any]", value), limit=limit)
    if isinstance(value, AsyncIterator):
        async for chunk in cast("AsyncIterator[Any]", value):
            yield chunk
    elif isinstance(value, Iterator):
        chunks = cast("Iterator[Any]", value)
        # A plain generator may block, so each step runs in a thread.
        while (chunk := await asyncio.to_thread(next, chunks, _END)) is not _END:
            yield chunk
    else:
        yield value
