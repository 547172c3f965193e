"""Frames of failed attempts of task runs end with the call; the error of a failed run is kept by Prefect."""

from __future__ import annotations

import asyncio
import gc
from typing import Any
from uuid import uuid4

import pytest
from prefect import flow, task

from prefect_resilience import Bulkhead, Effect, Expect, Fallback, Hedge, NotDone, Retry, resilient_task
from tests.calls.plain.test_frames import breaker, fails, flaky, kept, other, promise

pytestmark = [pytest.mark.api, pytest.mark.usefixtures("little_to_collect")]

RETRY = Retry(3, backoff="none", retry_on=Exception)
RETRIED: dict[str, Any] = {"retry": RETRY}
VERIFIED = Effect(key="pay:{order}", verify=lambda key: NotDone())

WELL: dict[str, Any] = {
    "retried": (flaky, {}),
    "a circuit, limits and a timeout": (
        flaky,
        {"circuit": breaker(), "limits": [Bulkhead(2)], "timeout": 60},
    ),
    "a hedge": (flaky, {"hedge": Hedge(after=60)}),
    "an error budget": (flaky, {"error_budget": 0.9}),
    "an output": (promise, {"retry": None, "expect": Expect("string", repair=True)}),
    "an effect": (flaky, {"effect": VERIFIED}),
    "a fallback": (fails, {"fallback": lambda: 3}),
    "a fallback that fails, and a value": (fails, {"fallback": [other, Fallback.value(3)]}),
    "a result of before": (fails, {"fallback": [Fallback.last_known_good(), Fallback.value(3)]}),
}
BADLY: dict[str, Any] = {
    "fails": (fails, {}),
    "a fallback that fails": (fails, {"fallback": other}),
    "a letter": (fails, {"dead_letter": True}),
    "an effect": (fails, {"effect": VERIFIED}),
}


def with_order(body: Any, isasync: bool) -> Any:
    def work(order: str) -> Any:
        return body()

    async def awork(order: str) -> Any:
        return body()

    return awork if isasync else work


def survivors(made: Any, isasync: bool, how: str) -> int:
    """How many frames of attempts are still there after a call in a flow run, without the collector."""

    def call() -> Any:
        if how == "submitted":
            return made.submit(uuid4().hex).wait()
        return made(uuid4().hex, return_state=how == "state")

    async def acall() -> None:
        result = call()
        if how == "submitted":
            await asyncio.sleep(0)
        else:
            await result
        del result
        await asyncio.sleep(0)  # the loop holds the result of a thread for one turn

    def prepare() -> None:
        kept.clear()
        gc.collect()
        gc.disable()

    def counted() -> int:
        gc.enable()
        assert kept
        return sum(data() is not None for data in kept)

    @flow
    def scenario() -> int:
        call()
        prepare()
        call()
        return counted()

    @flow
    async def ascenario() -> int:
        await acall()
        prepare()
        await acall()
        return counted()

    try:
        return asyncio.run(ascenario()) if isasync else scenario()
    finally:
        gc.enable()


@pytest.mark.parametrize("how", ["called", "state", "submitted"])
@pytest.mark.parametrize("isasync", [False, True])
def test_no_frame_of_a_failed_attempt_outlives_a_run_that_ended_well(isasync, how):
    left = {
        name: survivors(resilient_task(**RETRIED | options)(with_order(body, isasync)), isasync, how)
        for name, (body, options) in WELL.items()
    }
    assert left == dict.fromkeys(WELL, 0)


@pytest.mark.parametrize("isasync", [False, True])
def test_a_failed_run_leaves_less_than_a_plain_task(isasync):
    """Prefect keeps the state of a failed run, with its error and the error's frames, in the flow's context.

    With a plain task the frames of all attempts stay; with ours those of the last attempt.
    """
    fn = with_order(fails, isasync)
    plain = survivors(task(retries=2)(fn), isasync, "state")
    left = {
        name: survivors(resilient_task(**RETRIED | options)(with_order(body, isasync)), isasync, "state")
        for name, (body, options) in BADLY.items()
    }
    assert plain == 3
    assert left == dict.fromkeys(BADLY, 1)
