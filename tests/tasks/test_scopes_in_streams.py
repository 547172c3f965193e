"""Async generators that hold a task group or a deadline over a `yield`, as clients of models do."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator
from typing import Any

import anyio
import pytest
from prefect import flow

from prefect_resilience import CircuitBreaker, ResilientTask, Timeout, resilient_task

pytestmark = pytest.mark.api

LONG = 60.0
OPTIONS: dict[str, dict[str, Any]] = {
    "bare": {},
    "timeout": {"timeout": LONG},
    "idle": {"timeout": Timeout(total=LONG, idle=LONG)},
}
options = pytest.mark.parametrize("options", OPTIONS.values(), ids=OPTIONS)


@contextlib.asynccontextmanager
async def reply() -> AsyncIterator[Any]:
    """A reply that is read by a task of its own."""
    send, receive = anyio.create_memory_object_stream[str](0)

    async def read() -> None:
        async with send:
            for word in ("a", "b", "c"):
                await send.send(word)

    async with anyio.create_task_group() as group, receive:
        group.start_soon(read)
        yield receive


async def words() -> AsyncIterator[str]:
    with anyio.fail_after(LONG):
        async with reply() as stream:
            async for word in stream:
                yield word


def read(
    made: ResilientTask[..., Any], most: int = 9, pause: float = 0.02
) -> tuple[list[str], BaseException | None]:
    """The chunks that a reader gets which stops after so many, and is slow; and the error that ended them."""

    @flow
    async def reading() -> tuple[list[str], BaseException | None]:
        heard: list[str] = []
        try:
            async for word in made():
                heard.append(word)
                await asyncio.sleep(pause)
                if len(heard) == most:
                    break
        except Exception as error:
            return heard, error
        await others_ended()
        return heard, None

    return asyncio.run(reading())


async def others_ended() -> None:
    """Wait until no other task of the loop is left: a stream that was left early is closed by one."""
    for _ in range(500):
        if len(asyncio.all_tasks()) == 1:
            return
        await asyncio.sleep(0.01)


def ends(log: list[logging.LogRecord]) -> list[str]:
    found = [record for record in log if record.name == "prefect.task_runs"]
    return [record.getMessage() for record in found if record.getMessage().startswith("Finished in state")]


@options
def test_it_is_read_to_its_end_and_left_early(options: dict[str, Any], run_log: Any) -> None:
    circuit = CircuitBreaker("streams-with-scopes", failure_threshold=1)
    made = resilient_task(retry=None, circuit=circuit, **options)(words)
    assert read(made) == (["a", "b", "c"], None)
    assert read(made, most=1) == (["a"], None)
    assert circuit.state == "closed"
    assert ends(run_log) == ["Finished in state Completed()"] * 2
    assert not [record.getMessage() for record in run_log if record.levelno >= logging.WARNING]


@options
def test_its_own_deadline_ends_it_while_its_reader_is_at_work(options: dict[str, Any], run_log: Any) -> None:
    async def short() -> AsyncIterator[str]:
        with anyio.fail_after(LONG) as scope:
            async with reply() as stream:
                async for word in stream:
                    scope.deadline = anyio.current_time()
                    yield word

    heard, error = read(resilient_task(retry=None, **options)(short))
    assert heard == ["a"]
    assert type(error) is TimeoutError
    assert len(ends(run_log)) == 1
    assert "TimedOut" in ends(run_log)[0]
