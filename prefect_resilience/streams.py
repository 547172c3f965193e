"""Generator tasks: the same attempt, opened before the first chunk and settled after the last.

A stream that broke after it handed on a chunk is neither started again nor replaced: whoever reads it
would see the beginning twice.
"""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, AsyncIterator, Generator, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, cast

from prefect_resilience.attempt import (
    NO_RETRY,
    Guard,
    Held,
    Substitute,
    failed,
    let_in,
    let_out,
    succeeded,
    told,
)
from prefect_resilience.circuits.breaker import CircuitBreaker, Permit
from prefect_resilience.circuits.guard import entering
from prefect_resilience.drive import Sequence, adrive, drive
from prefect_resilience.errors.notes import add_note
from prefect_resilience.limits.stream import aiterate_with_deadline, iterate_with_deadline
from prefect_resilience.runs import TaskSurroundings, as_state, surroundings_of


@dataclass(slots=True)
class Stream:
    """One attempt of a generator."""

    guard: Guard
    here: TaskSurroundings
    began: float
    chunks: int = 0
    circuit: CircuitBreaker | None = None
    permit: Permit | None = None
    held: list[Held] = field(default_factory=list[Held])

    def opened(self) -> Sequence[None]:
        circuit = self.guard.circuit
        if circuit is not None:
            self.circuit = circuit.bind(self.here.parameters) if circuit.fields else circuit
            self.permit = yield from entering(self.circuit)
        yield from let_in(self.guard, self.here, self.held)

    def ended(self, error: BaseException | None) -> Sequence[None]:
        yield from let_out(self.held, error)
        if self.circuit is not None and self.permit is not None:
            permit, self.permit = self.permit, None
            yield from told(self.circuit, permit, self.guard, self.began, error)

    def finished(self) -> Sequence[None]:
        yield from self.ended(None)
        yield from succeeded(self.guard, self.here, None)

    def broke(self, error: Exception) -> Sequence[Substitute | BaseException]:
        """The substitute to go on with, or the error to raise."""
        yield from self.ended(error)
        guard = self.guard
        if self.chunks:
            guard = replace(guard, retry=NO_RETRY, fallbacks=())
            add_note(
                error,
                "prefect-resilience: a stream that broke after a chunk was handed on is not restarted",
            )
        return (yield from failed(guard, self.here, self.began, error))


def stream(guard: Guard, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Generator[Any, Any, Any]:
    """Run one attempt of a generator function inside its task run."""
    here = surroundings_of(guard)
    if here is None:
        alone: Generator[Any, Any, Any] = guard.fn(*args, **kwargs)
        return (yield from alone)
    attempt = Stream(guard, here, time.monotonic())
    try:
        drive(attempt.opened())
        source = guard.fn(*args, **kwargs)
        if guard.timeout is not None:
            source = iterate_with_deadline(source, guard.timeout.total, guard.timeout.idle)
        result = yield from _counted(source, attempt)
    except Exception as error:
        outcome = drive(attempt.broke(error))
        if not isinstance(outcome, Substitute):
            if outcome is error:
                raise
            raise outcome from outcome.__cause__
        yield from _chunks(outcome.answer.value)
        return as_state(outcome, here)
    except BaseException as error:
        drive(attempt.ended(error))
        raise
    drive(attempt.finished())
    return result


async def astream(guard: Guard, args: tuple[Any, ...], kwargs: dict[str, Any]) -> AsyncGenerator[Any, None]:
    """Run one attempt of an async generator function inside its task run."""
    here = surroundings_of(guard)
    if here is None:
        async for chunk in guard.fn(*args, **kwargs):
            yield chunk
        return
    attempt = Stream(guard, here, time.monotonic())
    try:
        await adrive(attempt.opened())
        source = guard.fn(*args, **kwargs)
        if guard.timeout is not None:
            source = aiterate_with_deadline(source, guard.timeout.total, guard.timeout.idle)
        async for chunk in source:
            attempt.chunks += 1
            yield chunk
    except Exception as error:
        outcome = await adrive(attempt.broke(error))
        if not isinstance(outcome, Substitute):
            if outcome is error:
                raise
            raise outcome from outcome.__cause__
        async for chunk in _achunks(outcome.answer.value):
            yield chunk
        return
    except BaseException as error:
        await adrive(attempt.ended(error))
        raise
    await adrive(attempt.finished())


def _counted(source: Generator[Any, Any, Any], attempt: Stream) -> Generator[Any, Any, Any]:
    """The chunks of a generator, counted; what is sent in goes through to it."""
    try:
        chunk = next(source)
        while True:
            attempt.chunks += 1
            sent = yield chunk
            chunk = source.send(sent)
    except StopIteration as stop:
        return stop.value
    finally:
        source.close()


def _chunks(value: Any) -> Iterator[Any]:
    """A fallback's answer as chunks: those of an iterator, or the one value."""
    if isinstance(value, Iterator):
        yield from cast("Iterator[Any]", value)
    else:
        yield value


async def _achunks(value: Any) -> AsyncIterator[Any]:
    if isinstance(value, AsyncIterator):
        async for chunk in cast("AsyncIterator[Any]", value):
            yield chunk
    else:
        for chunk in _chunks(value):
            yield chunk
