"""`once` in plain code, and around the tools of agents: one side effect in a scope, whatever asks again."""

import asyncio
import ctypes
import inspect
import logging
import subprocess
import sys
import typing
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from functools import wraps
from types import ModuleType, SimpleNamespace
from typing import Annotated, Any

import pytest

from prefect_resilience import (
    ConfigurationError,
    Effect,
    InDoubt,
    NotDone,
    NotRecorded,
    RepeatedEffect,
    batch,
    batch_status,
    once,
    resilient,
    settle,
)
from prefect_resilience.calls.edge import agent_contexts
from prefect_resilience.durable.effects import opening

SENT: Counter[Any] = Counter()
AGAIN = "Not repeated"


@pytest.fixture(autouse=True)
def bank():
    SENT.clear()


def transfer(to: str, amount: float = 5, note: Any = None) -> str:
    """Transfer money."""
    SENT[to, repr(amount), repr(note)] += 1
    return f"{amount} to {to}"


async def transfer_async(to: str, amount: float = 5, note: Any = None) -> str:
    """Transfer money."""
    return transfer(to, amount, note)


def test_a_rerun_replays_and_a_repeat_is_told_and_no_failure(caplog):
    tool = once(transfer, scope="turn-17")
    for _ in range(2):  # each block is a pass of its own
        with batch("a batch"):
            assert tool("bob", 50) == "50 to bob"
            told = tool("bob", 50)
    assert told.startswith(f"{AGAIN}: transfer with these arguments was done at 20")
    assert 'result: "50 to bob". To do it again, say in its arguments what differs.' in told
    assert tool("bob", 51) == "51 to bob"
    assert sum(SENT.values()) == 2
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_another_process_replays_and_imports_no_prefect(tmp_path):
    program = tmp_path / "agent.py"
    program.write_text(
        "import sys\nfrom prefect_resilience import once\n"
        "@once(scope=lambda: sys.argv[1])\n"
        "def pay(to: str) -> str:\n    print('paid')\n    return 'ok'\n"
        "print(pay('bob'))\nassert 'prefect' not in sys.modules\n"
    )
    outputs = [
        subprocess.run([sys.executable, program, turn], capture_output=True, text=True, check=True).stdout
        for turn in ("1", "1", "2")
    ]
    assert outputs == ["paid\nok\n", "ok\n", "paid\nok\n"]


@pytest.mark.parametrize("plain", [transfer, transfer_async])
def test_the_tool_looks_the_same(plain):
    tool = once(plain, scope="s")
    assert inspect.signature(tool) == inspect.signature(plain)
    assert typing.get_type_hints(tool) == typing.get_type_hints(plain)
    assert (tool.__name__, tool.__doc__) == (plain.__name__, plain.__doc__)
    assert inspect.iscoroutinefunction(tool) == inspect.iscoroutinefunction(plain)


@pytest.mark.parametrize(
    ("key", "first", "second", "same"),
    [
        (None, ("bob", 50), ("bob", 50.0), True),
        (None, ("bob", 5, {"a": 1, "b": [2.0]}), ("bob", 5, {"b": [2], "a": 1}), True),
        (None, ("bob", 50), ("bob", "50"), False),
        (None, ("bob", 1.5), ("bob", 1), False),
        (None, ("bob", 5, True), ("bob", 5, 1), False),
        ("transfer:{to}", ("bob", 5, "thanks"), ("bob", 5, "thank you"), True),
    ],
)
def test_arguments_are_compared_as_json_unless_a_key_names_what_counts(key, first, second, same):
    tool = once(transfer, scope="s", key=key)
    tool(*first)
    assert tool(*second).startswith(AGAIN) is same


def test_a_result_that_cannot_be_kept_is_told_as_such():
    tool = once(lambda to: SENT.update([to]) or object(), scope="s")
    with batch("first"):
        assert not isinstance(tool("bob"), str)
        assert "result: not kept" in tool("bob")
    with batch("second"):
        assert "result: not kept" in tool("bob")
    assert SENT == {"bob": 1}


@pytest.mark.parametrize("scope", ["for {to}", lambda to: f"for {to}"])
def test_a_scope_is_a_template_or_a_function_of_the_arguments(scope):
    tool = once(transfer, scope=scope)
    tool("bob")
    tool("eve")
    assert len(batch_status("for eve").effects) == 1


def closure(value: Any) -> Any:
    def pay(to: str) -> None:
        SENT[to, value] += 1

    return pay


@pytest.mark.parametrize(
    ("tool", "options", "message"),
    [
        (transfer, {}, "needs the run or turn"),
        (transfer, {"scope": "s", "unknown": "ask"}, 'write "raise" or "tell"'),
        (transfer, {"scope": "{amout}"}, "did you mean 'amount'"),
        (transfer, {"scope": transfer_async}, "neither a text nor a plain function"),
        (transfer, {"scope": "s", "key": "{amout}"}, "did you mean 'amount'"),
        (closure("bob"), {"scope": "s"}, "it uses 'value', which is not in its arguments"),
        (SENT.subtract, {"scope": "s"}, "it uses 'self', which is not in its arguments"),
        (wraps(SENT.subtract)(closure("bob")), {"scope": "s"}, "it uses 'self'"),
        (lambda: (yield), {"scope": "s"}, "a function with one result"),
        (Counter, {"scope": "s"}, "below the framework's own decorator"),
    ],
)
def test_what_cannot_work_is_refused_when_it_is_decorated(tool, options, message):
    with pytest.raises(ConfigurationError, match=message):
        once(tool, **options)


@pytest.mark.parametrize("scope", [None, " "])
def test_a_scope_function_must_return_a_scope(scope):
    with pytest.raises(ConfigurationError, match="was not called: its scope function tells no run or turn"):
        once(transfer, scope=lambda: scope)("bob")
    assert not SENT


def test_objects_and_counters_of_the_enclosing_function_need_no_key():
    calls = 0
    client = SENT

    @once(scope="s")
    def pay(to: str) -> int:
        nonlocal calls
        calls += 1
        client[to] += 1
        return calls

    assert [pay("bob"), pay("ann")] == [1, 2]
    assert once(closure("bob"), scope="s", key="pay:bob:{to}")("ann") is None


# -- unknown outcomes


def cut(to: str) -> str:
    """A transfer whose first answer is lost."""
    SENT[to] += 1
    if SENT[to] == 1:
        raise ConnectionResetError("cut")
    return f"to {to}"


def test_an_unknown_outcome_is_raised_or_told_until_a_person_decides():
    tool = once(cut, scope="s")
    for _ in range(2):
        with pytest.raises(InDoubt):
            tool("bob")
    (effect,) = batch_status("s").effects
    told = once(cut, scope="s", unknown="tell")("bob")
    assert told.startswith("It is unknown whether this call of cut took place, and it was not made again")
    assert f"batches settle s {effect.key}" in told
    settle("s", effect.key, "not_done")
    assert tool("bob") == "to bob"
    assert SENT["bob"] == 2


# -- at once, inside each other, without a ledger


def test_a_call_of_one_in_progress_is_told_that_it_goes_on():
    @once(scope="s")
    def slow(to: str) -> str:
        with ThreadPoolExecutor() as pool:
            return pool.submit(slow, to).result()

    assert "is still in progress" in slow("bob")


def test_a_repeat_inside_the_tool_is_not_told_of_the_tool():
    mail = resilient(effect="external", retry=None)(transfer)

    @once(scope="s", verify=lambda key: NotDone())
    def outer(to: str) -> str:
        return mail(to) + mail(to)

    with batch("b"), pytest.raises(RepeatedEffect):
        outer("bob")


@pytest.mark.parametrize(("lost", "most"), [("effects/s/", 200), ("", 0)])
def test_a_ledger_that_was_emptied_stops_the_process_that_filled_it(lost, most, empty, monkeypatch):
    monkeypatch.setattr(opening, "MOST_COUNTED", most)
    tool = once(transfer, scope="s")
    tool("bob")
    empty(lost)
    for again in ("bob", "eve"):
        with pytest.raises(NotRecorded, match="lost records"):
            tool(again)
    assert sum(SENT.values()) == 1


def test_it_is_off_where_resilience_is_off(monkeypatch):
    monkeypatch.setenv("RESILIENCE_ENABLED", "false")
    now, later = once(transfer, scope="s"), once(transfer_async, scope="s")
    for _ in range(2):
        assert [now("bob"), asyncio.run(later("bob"))] == ["5 to bob", "5 to bob"]


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
        SENT[to] += 1
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
    assert SENT == {"bob": 1}
    assert pay("bob", runtime("c4", prompt, asked("c3"), human("p2"), asked("c4"))) == "paid"
    assert SENT == {"bob": 2}


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
    assert SENT == {"bob": 1}


@pytest.mark.parametrize("context", [ToolRuntime, of("pydantic_ai.tools", "RunContext")])
def test_the_turn_of_an_agent_inside_a_node_is_the_node(context, node):
    pay = tool(context)
    node.checkpoint_ns = "worker:1|tools:2"
    pay("bob", both_shapes("r1", human("new"), asked("c1")))
    node.checkpoint_ns = "worker:1|1|tools:3"  # the node is retried, and makes a new prompt
    assert pay("bob", both_shapes("r2", human("newer"), asked("c2"))) == "paid"
    assert SENT == {"bob": 1}
    node.checkpoint_ns = "worker:2|tools:4"
    pay("bob", both_shapes("r3", human("newest"), asked("c3")))
    node.thread_id = "another thread"
    pay("bob", both_shapes("r3", human("newest"), asked("c3")))
    assert SENT == {"bob": 3}


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
    assert SENT == {"bob": 1}


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


@pytest.mark.parametrize("traffic", ["none", "file", "native", "own"])
def test_a_request_to_the_framework_is_passed_on_if_nothing_can_have_left(traffic, tmp_path):
    answers: list[str] = []
    outcome = GraphInterrupt if traffic == "none" else InDoubt

    def ask(by: str) -> str:
        if answers:
            return answers[0]
        if by == "file":
            (tmp_path / "sent").write_text(by)
        raise GraphInterrupt("approve?")

    def ask_with_driver(by: str) -> str:
        return f"{ctypes.CDLL}" and ask(by)

    tool = ask_with_driver if traffic in ("native", "own") else ask
    own = resilient(effect=Effect(key="k", one_request=True), retry=None)
    approve = own(tool) if traffic == "own" else once(tool, scope="s")
    with pytest.raises(outcome), batch("b"):
        approve(traffic)
    answers.append("yes")
    if outcome is GraphInterrupt:
        assert approve(traffic) == "yes"
