"""Our retry policy in tasks that another library makes."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import httpx
import pytest
from prefect import flow, task
from pydantic_ai import Agent
from pydantic_ai.durable_exec.prefect import PrefectDurability
from pydantic_ai.exceptions import ModelHTTPError
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from prefect_resilience import Backoff, ConfigurationError, Retry
from prefect_resilience.agents import task_config

FAST = Retry(attempts=3, backoff=Backoff.constant(0.01, jitter=0))


def test_the_policy_as_options_of_prefect():
    made = task_config(Retry(attempts=4, backoff=Backoff.schedule([1, 5])), timeout="2m", log_prints=True)
    assert made.pop("retry_condition_fn") is not None
    assert made == {
        "retries": 3,
        "retry_delay_seconds": [1.0, 5.0, 5.0],
        "timeout_seconds": 120.0,
        "log_prints": True,
    }
    assert task_config(None) == {"retries": 0, "retry_delay_seconds": 0}
    assert len(task_config(200)["retry_delay_seconds"]) == 50


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"retry": "three"}, "is not a retry policy: write Retry"),
        ({"timeout": "soon"}, "timeout must be a duration"),
        ({"retries": 3}, "retries= is set by the policy"),
        ({"persist": True}, "a Prefect task has no option 'persist'; did you mean 'persist_result'"),
    ],
)
def test_mistakes(options: dict[str, Any], says: str):
    with pytest.raises(ConfigurationError, match=says):
        task_config(**options)


class Refusing:
    """Raises its errors one after the other, then answers."""

    def __init__(self, *errors: Exception) -> None:
        self.errors = list(errors)
        self.at: list[float] = []

    def __call__(self) -> str:
        self.at.append(time.monotonic())
        if self.errors:
            raise self.errors.pop(0)
        return "answer"


def answer(status: int, **headers: str) -> httpx.HTTPStatusError:
    request = httpx.Request("GET", "http://127.0.0.1/")
    response = httpx.Response(status, headers=headers, request=request)
    return httpx.HTTPStatusError(str(status), request=request, response=response)


@pytest.mark.api
def test_a_plain_task_retries_what_may_pass_and_nothing_else():
    passes, wrong = Refusing(answer(503), ConnectionRefusedError()), Refusing(answer(400))

    @flow
    def run() -> tuple[str, bool]:
        good = task(passes, **task_config(FAST))
        bad = task(wrong, **task_config(FAST))
        return good(), bad(return_state=True).is_failed()

    assert run() == ("answer", True)
    assert (len(passes.at), len(wrong.at)) == (3, 1)


@pytest.mark.api
def test_retry_after_is_waited_for():
    limited = Refusing(answer(429, **{"Retry-After": "1"}))

    @flow
    async def run() -> str:
        async def call() -> str:
            return limited()

        return await task(call, **task_config(FAST))()

    assert asyncio.run(run()) == "answer"
    first, second = limited.at
    assert second - first >= 1.0


@pytest.mark.api
async def test_an_agent_of_pydantic_ai():
    refused = [ModelHTTPError(503, "served"), ModelHTTPError(529, "served")]
    asked: list[int] = []

    def model(messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        asked.append(len(messages))
        if refused:
            raise refused.pop(0)
        return ModelResponse(parts=[TextPart("aspirin")])

    options: Any = task_config(FAST, timeout=20)
    durable = PrefectDurability(model_task_config=options)
    agent = Agent(FunctionModel(model), name="pharmacist", capabilities=[durable])

    @flow
    async def ask() -> str:
        return (await agent.run("Which drug?")).output

    assert await ask() == "aspirin"
    assert len(asked) == 3
