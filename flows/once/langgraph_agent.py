"""LangGraph with a checkpointer. `python -m flows.once.langgraph_agent THREAD`: a killed run is resumed."""

from __future__ import annotations

import os
import sys
from typing import Any

from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from langgraph.checkpoint.sqlite import SqliteSaver
from langgraph.graph import START, MessagesState, StateGraph
from langgraph.prebuilt import ToolNode, ToolRuntime, tools_condition

from flows.once.bank import PROMPT, send, was_it_sent
from prefect_resilience import once


@tool
@once(verify=was_it_sent)
def transfer(to: str, amount: int, runtime: ToolRuntime) -> str:
    """Transfer money."""
    return send(to, amount)


def main() -> None:
    model = ChatOpenAI(model="scripted", base_url=os.environ["MODEL_URL"], api_key="none", max_retries=0)
    asking: Any = model.bind_tools([transfer])
    graph = StateGraph(MessagesState)
    graph.add_node("model", lambda state: {"messages": [asking.invoke(state["messages"])]})
    graph.add_node("tools", ToolNode([transfer]))
    graph.add_edge(START, "model")
    graph.add_conditional_edges("model", tools_condition)
    graph.add_edge("tools", "model")
    with SqliteSaver.from_conn_string("checkpoints.db") as checkpoints:
        app = graph.compile(checkpointer=checkpoints)
        config: Any = {"configurable": {"thread_id": sys.argv[1]}}
        interrupted = bool(app.get_state(config).next)
        begin = None if interrupted else {"messages": [("user", PROMPT)]}
        # By default a step may begin before the one before it is saved, and the prompt has no id until then.
        state = app.invoke(begin, config, durability="sync")
        print(state["messages"][-1].content)


if __name__ == "__main__":
    main()
