"""OpenAI Agents. `python -m flows.once.openai_agent TURN`: the turn's id is in the context of the run."""

from __future__ import annotations

import asyncio
import os
import sys
from dataclasses import dataclass

from agents import (
    Agent,
    OpenAIChatCompletionsModel,
    RunContextWrapper,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from openai import AsyncOpenAI

from flows.once.bank import PROMPT, send, was_it_sent
from prefect_resilience import once


@dataclass
class Turn:
    run_id: str


@function_tool
@once(verify=was_it_sent)
def transfer(ctx: RunContextWrapper[Turn], to: str, amount: int) -> str:
    """Transfer money."""
    return send(to, amount)


async def main() -> None:
    set_tracing_disabled(True)
    client = AsyncOpenAI(base_url=os.environ["MODEL_URL"], api_key="none", max_retries=0)
    agent = Agent(name="bank", model=OpenAIChatCompletionsModel("scripted", client), tools=[transfer])
    result = await Runner.run(agent, PROMPT, context=Turn(run_id=sys.argv[1]))
    print(result.final_output)


if __name__ == "__main__":
    asyncio.run(main())
