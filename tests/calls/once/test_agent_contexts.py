"""The shapes in which LangGraph 1.2, OpenAI Agents 0.24 and others show a tool's call."""

from __future__ import annotations

import ctypes
import sys
from types import ModuleType, SimpleNamespace
from typing import Annotated, Any

import pytest

from prefect_resilience import ConfigurationError, InDoubt, once
from prefect_resilience.calls.edge import agent_contexts

AGAIN = "Not repeated"
SENT: list[str] = []


@pytest.fixture(autouse=True)
def bank():
    SENT.clear()


def of(module: str, name: str, base: type = object) -> Any:
    return type(name, (base,), {"__module__": module})


ToolRuntime = of("langgraph.prebuilt.tool_node", "ToolRuntime")
InjectedState = of("langgraph.prebuilt.tool_node", "InjectedState")
InjectedToolCallId = of("langchain_core.tools.base", "InjectedToolCallId")
GraphInterrupt = of("langgraph.errors", "GraphInterrupt", of("langgraph.errors", "GraphBubbleUp", Exception))
State = Annotated[dict[str, Any], InjectedState()]
Context = of("mcp.server.mcpserver.context", "Context")
ToolContext = of("agents.tool_context", "ToolContext")


class RunContextWrapper:
    __module__ = "agents.run_context"

    def __class_getitem__(cls, held: type) -> Any:
        return Annotated[cls, held]


class Turn:
    run_id: str


def tool(context: Any, **options: Any) -> Any:
    def pay(to: str, context: Any) -> str:
        SENT.append(to)
        return "paid"

    pay.__annotations__["context"] = context
    return once(**options)(pay)


# -- LangGraph


def human(message_id: str) -> Any:
    return SimpleNamespace(type="human", id=message_id)


def asked(call_id: str) -> Any:
    return SimpleNamespace(type="ai", id="a", tool_calls=[{"id": call_id}])


def runtime(call_id: str, *messages: Any) -> Any:
    return SimpleNamespace(state={"messages": messages}, tool_call_id=call_id)


@pytest.fixture
def node(monkeypatch):
    """The node execution that `langgraph.runtime.get_runtime()` tells."""
    info = SimpleNamespace(
        thread_id="t", checkpoint_ns="tools:1", node_attempt=1, node_first_attempt_time=1795836672.5
    )
    module: Any = ModuleType("langgraph.runtime")
    module.get_runtime = lambda: SimpleNamespace(execution_info=info)
    monkeypatch.setitem(sys.modules, "langgraph.runtime", module)
    return info


def test_in_a_conversation_a_repeat_is_a_call_whose_outcome_the_model_knows():
    pay = tool(ToolRuntime)
    prompt = human("p1")
    assert pay("bob", runtime("c1", prompt, asked("c1"))) == "paid"
    assert pay("bob", runtime("c1", prompt, asked("c1"))) == "paid"  # the framework repeats the model's call
    assert pay("bob", runtime("c2", prompt, asked("c2"))) == "paid"  # the model does not know of c1
    assert pay("bob", runtime("c2", prompt, asked("c2"), asked("c2"))).startswith(AGAIN)  # an id used again
    assert pay("bob", runtime("c3", prompt, asked("c2"), asked("c3"))).startswith(AGAIN)
    assert SENT == ["bob"]
    assert pay("bob", runtime("c4", prompt, asked("c3"), human("p2"), asked("c4"))) == "paid"
    assert SENT == ["bob", "bob"]


def test_a_node_that_is_retried_or_resumed_begins_again(node):
    pay = tool(dict, scope="s")  # without an argument of the framework
    assert pay("bob", {}) == "paid"
    assert pay("bob", {}).startswith(AGAIN)
    node.node_attempt = 2
    assert pay("bob", {}) == "paid"
    node.node_first_attempt_time, node.node_attempt = None, 1
    assert pay("bob", {}) == "paid"
    node.checkpoint_ns = "tools:2"  # a later step of the same graph
    assert pay("bob", {}).startswith(AGAIN)
    assert SENT == ["bob"]


@pytest.mark.parametrize("context", [ToolRuntime, of("pydantic_ai.tools", "RunContext")])
def test_the_turn_of_an_agent_inside_a_node_is_the_node(context, node):
    pay = tool(context)
    node.checkpoint_ns = "worker:1|tools:2"
    pay("bob", both_shapes("r1", human("new"), asked("c1")))
    node.checkpoint_ns = "worker:1|1|tools:3"  # the node is retried, and makes a new prompt
    assert pay("bob", both_shapes("r2", human("newer"), asked("c2"))) == "paid"
    assert SENT == ["bob"]
    node.checkpoint_ns = "worker:2|tools:4"
    pay("bob", both_shapes("r3", human("newest"), asked("c3")))
    node.thread_id = "another thread"
    pay("bob", both_shapes("r3", human("newest"), asked("c3")))
    assert SENT == ["bob"] * 3


def both_shapes(run_id: str, *messages: Any) -> Any:
    own = messages[-1].tool_calls[0]["id"]
    response = SimpleNamespace(parts=[SimpleNamespace(part_kind="tool-call", tool_call_id=own)])
    return SimpleNamespace(state={"messages": messages}, run_id=run_id, messages=[response], tool_call_id=own)


def test_outside_of_a_graph_there_is_no_node(monkeypatch):
    monkeypatch.setitem(sys.modules, "langgraph.runtime", ModuleType("outside"))
    assert tool(ToolRuntime)("bob", runtime("c1", human("1"), asked("c1"))) == "paid"


def test_the_state_and_the_call_id_may_be_injected():
    @once
    def book(to: str, state: State, call_id: Annotated[str, InjectedToolCallId]) -> str:
        return "booked"

    state = {"messages": [human("p"), asked("c1")]}
    pay = tool(State)
    assert pay("bob", state) == "paid"
    assert pay("bob", state).startswith(AGAIN)  # whose call it is cannot be told
    assert [book("bob", state, "c1") for _ in range(2)] == ["booked", "booked"]
    assert book("bob", {"messages": [*state["messages"], asked("c2")]}, "c2").startswith(AGAIN)


# -- OpenAI Agents, MCP


def test_the_context_of_openai_agents_has_the_run_id(monkeypatch):
    # A later run may be at the address of an earlier one.
    monkeypatch.setattr(agent_contexts, "id", lambda _: 1, raising=False)
    pay = tool(RunContextWrapper[Turn])
    first, second = (SimpleNamespace(context={"run_id": "1"}, usage=SimpleNamespace()) for _ in range(2))
    assert pay("bob", first) == "paid"
    assert pay("bob", first).startswith(AGAIN)
    assert pay("bob", second) == "paid"
    assert SENT == ["bob"]


@pytest.mark.parametrize(
    ("context", "value"),
    [(ToolRuntime, runtime("c1")), (RunContextWrapper[Turn], SimpleNamespace(context=None, usage=None))],
)
def test_a_value_that_tells_no_turn_is_refused_when_it_is_called(context, value):
    with pytest.raises(ConfigurationError, match="was not called: its context argument tells no run or turn"):
        tool(context)("bob", value)


@pytest.mark.parametrize("context", [RunContextWrapper[str], ToolContext, Context, "mcp.Context", "int"])
def test_a_context_that_tells_no_turn_is_refused_when_it_is_decorated(context):
    with pytest.raises(ConfigurationError, match="needs the run or turn"):
        tool(context)


def test_no_context_is_an_argument_of_the_model_even_if_its_name_cannot_be_resolved():
    pay = tool("RunContext[Nowhere]", scope=lambda context: context.deps)
    context = SimpleNamespace(run_id="r", deps="d", messages=None, tool_call_id="c1")
    assert pay("bob", context) == "paid"
    context.tool_call_id = "c2"
    assert pay("bob", context).startswith(AGAIN)
    pay = tool(of("langchain_core.runnables.config", "RunnableConfig", dict), scope="s")
    assert pay("bob", {"run_id": "1"}) == "paid"
    assert pay("bob", {"run_id": "2"}).startswith(AGAIN)


# -- what a tool asks of its framework


@pytest.mark.parametrize(
    ("traffic", "outcome"), [("none", GraphInterrupt), ("file", InDoubt), ("native", InDoubt)]
)
def test_a_request_to_the_framework_is_passed_on_if_nothing_can_have_left(traffic, outcome, tmp_path):
    answers: list[str] = []

    def ask(by: str) -> str:
        if answers:
            return answers[0]
        if by == "file":
            (tmp_path / "sent").write_text(by)
        raise GraphInterrupt("approve?")

    def ask_with_driver(by: str) -> str:
        return f"{ctypes.CDLL}" and ask(by)

    approve = once(ask_with_driver if traffic == "native" else ask, scope="s")
    with pytest.raises(outcome):
        approve(traffic)
    answers.append("yes")
    if outcome is GraphInterrupt:
        assert approve(traffic) == "yes"
