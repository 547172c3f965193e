"""A loop that calls the tools of `mcp_server.py`. `python -m flows.once.mcp_agent TURN`."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from typing import Any

from fastmcp import Client
from fastmcp.client.transports import PythonStdioTransport
from openai import AsyncOpenAI

from flows.once import mcp_server
from flows.once.bank import PROMPT


async def main() -> None:
    model = AsyncOpenAI(base_url=os.environ["MODEL_URL"], api_key="none", max_retries=0)
    messages: list[Any] = [{"role": "user", "content": PROMPT}]
    async with Client(PythonStdioTransport(mcp_server.__file__, env=dict(os.environ))) as client:
        (tool,) = await client.list_tools()
        function = {"name": tool.name, "description": tool.description, "parameters": tool.input_schema}
        tools: Any = [{"type": "function", "function": function}]
        while True:
            answer = await model.chat.completions.create(model="scripted", messages=messages, tools=tools)
            message = answer.choices[0].message
            messages.append(message)
            if not message.tool_calls:
                print(message.content)
                return
            for call in message.tool_calls:
                arguments = json.loads(call.function.arguments)
                result = await client.call_tool(call.function.name, arguments, meta={"turn": sys.argv[1]})
                messages.append({"role": "tool", "tool_call_id": call.id, "content": result.data})


if __name__ == "__main__":
    asyncio.run(main())
