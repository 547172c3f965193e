"""pydantic-ai. `python -m flows.once.pydantic_agent TURN`: a killed run continues from its messages."""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from pydantic_ai import Agent, RunContext
from pydantic_ai.messages import ModelMessage, ModelMessagesTypeAdapter
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from flows.once.bank import PROMPT, send, was_it_sent
from prefect_resilience import once

agent = Agent()


@agent.tool
@once(verify=was_it_sent)
def transfer(ctx: RunContext, to: str, amount: int) -> str:
    """Transfer money."""
    return send(to, amount)


def load(saved: Path) -> list[ModelMessage]:
    return ModelMessagesTypeAdapter.validate_json(saved.read_bytes()) if saved.exists() else []


def save(saved: Path, messages: list[ModelMessage]) -> None:
    saved.write_bytes(ModelMessagesTypeAdapter.dump_json(messages))


async def main() -> None:
    model = OpenAIChatModel(
        "scripted", provider=OpenAIProvider(base_url=os.environ["MODEL_URL"], api_key="none")
    )
    saved = Path(f"{sys.argv[1]}.json")
    history = load(saved)
    async with agent.iter(None if history else PROMPT, message_history=history, model=model) as run:
        async for _ in run:
            save(saved, run.all_messages())
    assert run.result is not None
    print(run.result.output)


if __name__ == "__main__":
    asyncio.run(main())
