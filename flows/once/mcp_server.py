"""An MCP server: `python -m flows.once.mcp_server`. Its client names the turn in the metadata of a call."""

from __future__ import annotations

from typing import Any

from fastmcp import Context, FastMCP

from flows.once.bank import send, was_it_sent
from prefect_resilience import once

server: Any = FastMCP("bank")


def turn_of(ctx: Context) -> str:
    context: Any = ctx.request_context
    return context.meta["turn"]


@server.tool
@once(scope=turn_of, verify=was_it_sent)
def transfer(to: str, amount: int, ctx: Context) -> str:
    """Transfer money."""
    return send(to, amount)


if __name__ == "__main__":
    server.run(show_banner=False)
