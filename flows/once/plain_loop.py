"""A loop of your own. `python -m flows.once.plain_loop TURN`: the same turn again sends nothing twice."""

from __future__ import annotations

import json
import os
import sys
from typing import Any

from openai import OpenAI

from flows.once.bank import PROMPT, send, was_it_sent
from prefect_resilience import once

TOOLS: Any = [
    {
        "type": "function",
        "function": {
            "name": "transfer",
            "description": "Transfer money.",
            "parameters": {
                "type": "object",
                "properties": {"to": {"type": "string"}, "amount": {"type": "integer"}},
                "required": ["to", "amount"],
            },
        },
    }
]


@once(scope=lambda: sys.argv[1], verify=was_it_sent)
def transfer(to: str, amount: int) -> str:
    """Transfer money."""
    return send(to, amount)


def main() -> None:
    client = OpenAI(base_url=os.environ["MODEL_URL"], api_key="none", max_retries=0)
    messages: list[Any] = [{"role": "user", "content": PROMPT}]
    while True:
        answer = client.chat.completions.create(model="scripted", messages=messages, tools=TOOLS)
        message = answer.choices[0].message
        messages.append(message)
        if not message.tool_calls:
            print(message.content)
            return
        for call in message.tool_calls:
            result = transfer(**json.loads(call.function.arguments))
            messages.append({"role": "tool", "tool_call_id": call.id, "content": result})


if __name__ == "__main__":
    main()
