"""Tools of pydantic-ai: one run, its resume from the history, and the next run."""

from typing import Any

import pytest
from pydantic_ai import Agent, ModelRetry, RunContext
from pydantic_ai.messages import ModelMessage, ModelResponse, TextPart, ToolCallPart
from pydantic_ai.models.function import AgentInfo, FunctionModel

from prefect_resilience import once

AGAIN = "Not repeated"
BOB = {"to": "bob", "amount": 5}
EVE = {"to": "eve", "amount": 1}


class Bank:
    """An agent with a scripted model: each answer is the calls of the tool that it asks for."""

    def __init__(self) -> None:
        self.sent: list[str] = []
        self.history: list[ModelMessage] = []
        self.answers: list[Any] = []
        self.agent = Agent(FunctionModel(self.answer))

        @self.agent.tool
        @once
        async def pay(ctx: RunContext[None], to: str, amount: float) -> str:
            """Pay."""
            self.history = list(ctx.messages)
            if amount < 0:
                raise ModelRetry("a positive amount, please")
            self.sent.append(to)
            return "paid"

    def answer(self, messages: list[ModelMessage], info: AgentInfo) -> ModelResponse:
        assert sorted(info.function_tools[0].parameters_json_schema["properties"]) == ["amount", "to"]
        calls = self.answers.pop(0) if self.answers else []
        if isinstance(calls, Exception):
            raise calls
        return ModelResponse(parts=[*(ToolCallPart("pay", call) for call in calls)] or [TextPart("done")])

    async def run(self, *answers: Any, prompt: str | None = "go", **options: Any) -> list[str]:
        """What the tool returned to the model in this run."""
        self.answers = [*answers]
        result = await self.agent.run(prompt, **options)
        parts = [part for message in result.new_messages() for part in message.parts]
        self.all = result.all_messages()
        return [str(part.content) for part in parts if part.part_kind in ("tool-return", "retry-prompt")]


async def test_a_repeat_in_one_run_is_told_and_the_next_run_is_another_turn():
    bank = Bank()
    first, again, refused, *both = await bank.run([BOB], [BOB], [{**EVE, "amount": -1}], [EVE, EVE])
    assert (first, refused) == ("paid", "a positive amount, please")
    assert again.startswith(f"{AGAIN}: pay")
    assert sorted(text.partition(":")[0] for text in both) == [AGAIN, "paid"]
    assert await bank.run([BOB], message_history=bank.all) == ["paid"]
    assert bank.sent == ["bob", "eve", "bob"]


async def test_a_run_is_resumed_from_its_history():
    bank = Bank()
    with pytest.raises(ConnectionError):
        await bank.run([BOB], ConnectionError("the model"))
    before_the_call, with_the_call = bank.history[:-1], bank.history
    assert await bank.run([BOB], prompt=None, message_history=before_the_call) == ["paid"]
    assert await bank.run(prompt=None, message_history=with_the_call) == ["paid"]
    assert bank.sent == ["bob"]
