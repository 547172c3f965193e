"""A `print` goes where it goes from a plain `@task`: to the log of the run, where flow or setting say so."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from typing import Any

import pytest
from prefect import flow, task
from prefect.settings import PREFECT_LOGGING_LOG_PRINTS, temporary_settings

from prefect_resilience import ResilientTask, Timeout, on_error, resilient_task, run_plan

pytestmark = pytest.mark.api

Log = list[logging.LogRecord]


def lines(log: Log) -> list[str]:
    """What was printed, each line with the task whose run it was logged for."""
    found = ((getattr(record, "task_name", "flow"), record.getMessage()) for record in log)
    return [f"{name}: {said}" for name, said in found if said.startswith("printed")]


def speaker(kind: str) -> Callable[..., Any]:
    if kind == "sync":

        def speak() -> None:
            print("printed here")

        return speak
    if kind == "async":

        async def speak() -> None:
            await asyncio.sleep(0)
            print("printed here")

        return speak
    if kind == "generator":

        def speak():
            yield 1
            print("printed here")

        return speak

    async def speak():
        yield 1
        await asyncio.sleep(0)
        print("printed here")

    return speak


def run_in_flow(made: Any, kind: str, **options: Any) -> None:
    if kind in ("sync", "generator"):

        @flow(**options)
        def speaking() -> None:
            outcome = made()
            list(outcome or ())

        speaking()
        return

    @flow(**options)
    async def aspeaking() -> None:
        if kind == "async":
            await made()
        else:
            assert [chunk async for chunk in made()] == [1]

    asyncio.run(aspeaking())


KINDS = ["sync", "async", "generator", "async generator"]
# A sync call leaves the main thread for "thread"
OPTIONS: dict[str, dict[str, Any]] = {
    "bare": {},
    "in a thread": {"timeout": Timeout(20, mode="thread")},
    "wrapped": {},
}


def make(kind: str, how: str, **options: Any) -> Any:
    if how == "wrapped":
        return ResilientTask.wrap(task(speaker(kind), **options))
    return resilient_task(**OPTIONS[how], **options)(speaker(kind))


@pytest.mark.parametrize("how", OPTIONS)
@pytest.mark.parametrize("kind", KINDS)
def test_the_flow_says_whether_prints_are_logged(kind: str, how: str, run_log: Log) -> None:
    made = make(kind, how)
    assert made.log_prints is None
    run_in_flow(made, kind, log_prints=True)
    assert lines(run_log) == ["speak: printed here"]


@pytest.mark.parametrize("kind", KINDS)
def test_the_setting_says_whether_prints_are_logged(kind: str, run_log: Log, capsys: Any) -> None:
    with temporary_settings({PREFECT_LOGGING_LOG_PRINTS: True}):
        run_in_flow(resilient_task(speaker(kind)), kind)
        assert lines(run_log) == ["speak: printed here"]
        run_log.clear()
        run_in_flow(make(kind, "bare", log_prints=False), kind)
    run_in_flow(resilient_task(speaker(kind)), kind)
    assert not lines(run_log)
    assert capsys.readouterr().out.count("printed here") == 2


def test_fallbacks_handlers_and_nodes_of_plans_print_into_the_log(run_log: Log, mode: Any) -> None:
    def broken() -> None:
        print("printed before it broke")
        raise ConnectionResetError("cut")

    def stand_in() -> str:
        print("printed by the fallback")
        return "instead"

    def take_over() -> str:
        print("printed by the handler")
        return "handled"

    def asked(error: Any) -> bool:
        print("printed by the condition")
        return True

    with_fallback = mode.task(broken, retry=None, fallback=stand_in, timeout=20, name="with_fallback")
    failing = mode.task(broken, retry=None, name="failing")

    @flow(log_prints=True)
    def speaking() -> list[Any]:
        answered = with_fallback.submit().result()
        return [answered, on_error(failing.submit(), mode.function(take_over), when=asked).result()]

    assert speaking() == ["instead", "handled"]
    assert lines(run_log) == [
        "with_fallback: printed before it broke",
        "with_fallback: printed by the fallback",
        "failing: printed before it broke",
        "on_error: printed by the condition",
        "take_over: printed by the handler",
    ]
    run_log.clear()
    with temporary_settings({PREFECT_LOGGING_LOG_PRINTS: True}):
        run_plan({"tasks": [{"id": "first", "type": "speak"}]}, actions={"speak": stand_in})
    assert lines(run_log) == ["first: printed by the fallback"]
