"""Reads an agent framework's own context argument of a tool: the run or turn, and the model's call.

By the shape of the values alone: no framework is imported. A tool's parameter is such an argument if its
annotation names a class of a framework, or says that it is injected (`Annotated[..., InjectedState]`).

A turn is what one prompt of a person begins. It must stay the same when it is resumed, and differ for the
next prompt. pydantic-ai keeps the id of the run with each message of the history, LangGraph the id of the
prompt in the checkpoint; both survive a resume. The ids of runs, requests and model calls do not.
"""

from __future__ import annotations

import sys
import typing
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, cast
from uuid import uuid4

from prefect_resilience.durable.effects.model import Pass
from prefect_resilience.errors.classify.shapes import package, value_of

FRAMEWORKS = frozenset(
    {"pydantic_ai", "langgraph", "langchain", "langchain_core", "agents", "mcp", "fastmcp", "agno"}
)
OPENAI = frozenset({"RunContextWrapper", "ToolContext"})
CONTEXTS = frozenset({"RunContext", "ToolRuntime", "RunnableConfig", "Context", *OPENAI})
WITH_TURN = frozenset({"RunContext", "ToolRuntime", "InjectedState"})
"""The kinds of arguments that tell the turn; of the others, `OPENAI` may."""
RUN_ID = "run_id"


@dataclass(frozen=True, slots=True)
class ModelCall:
    """A call of a tool by a model, as far as the framework shows it.

    `turn` identifies the run or turn. `name` identifies the model's call; a framework that repeats this call
    repeats the name. `passed` is the execution around it. `conversation`: the names of the calls that the
    model knows of.
    """

    turn: str | None = None
    name: str | None = None
    passed: Pass = ()
    conversation: frozenset[str] = frozenset()


def hints_of(fn: Callable[..., Any]) -> dict[str, Any]:
    """The annotations of a function; as texts where they cannot be resolved."""
    try:
        return typing.get_type_hints(fn, include_extras=True)
    except Exception:  # noqa: BLE001 - names that only a type checker imports
        return dict(getattr(fn, "__annotations__", {}))


def context_parameters(hints: Mapping[str, Any]) -> dict[str, str]:
    """The parameters that the framework fills in, each with the kind of its value."""
    return {name: kind for name, hint in hints.items() if name != "return" and (kind := _kind_of(hint))}


def _kind_of(hint: Any) -> str | None:
    if isinstance(hint, str):
        name = hint.partition("[")[0].rpartition(".")[2].strip()
        return name if name in CONTEXTS else None
    for extra in getattr(hint, "__metadata__", ()):
        name = (extra if isinstance(extra, type) else cast("type[Any]", type(extra))).__name__
        if name.startswith("Injected"):
            return name
    for choice in (hint, *typing.get_args(hint)):
        plain: Any = typing.get_origin(choice) or choice
        for base in getattr(plain, "__mro__", (plain,)):
            name = getattr(base, "__name__", "")
            if name in CONTEXTS and package(base) in FRAMEWORKS:
                return name
    return None


def tells_turn(kinds: Mapping[str, str], hints: Mapping[str, Any]) -> bool:
    """Whether the arguments of these kinds tell the run or turn."""
    held = (part for name, kind in kinds.items() if kind in OPENAI for part in typing.get_args(hints[name]))
    return not WITH_TURN.isdisjoint(kinds.values()) or any(
        RUN_ID in getattr(base, "__annotations__", ()) or hasattr(base, RUN_ID)
        for part in held
        for base in getattr(part, "__mro__", ())
    )


def read_contexts(kinds: Mapping[str, str], values: Mapping[str, Any]) -> ModelCall:
    """The model's call, from the arguments that the framework filled in."""
    turn, call_id, passed, messages = None, None, (), cast("Any", ())
    info = _node_execution()
    # An agent inside a node may have a new prompt each time that the node runs: its turn is the node's.
    node, inner, _ = ("", "", "") if info is None else info.checkpoint_ns.partition("|")
    for name, kind in kinds.items():
        value = values[name]
        if kind == "InjectedToolCallId":
            call_id = value
        elif kind in ("ToolRuntime", "InjectedState"):
            messages = value_of(getattr(value, "state", value), "messages") or ()
            turn = (node if inner else "") or _prompt(messages, "id")
        elif kind == "RunContext":
            messages = value_of(value, "messages") or ()
            turn = node or _prompt(messages, RUN_ID, value.run_id)
        elif kind in OPENAI:
            turn = value_of(value.context, RUN_ID)
            # One object in a run: its address may be that of the next one, too.
            passed = ((getattr(value.usage, "__dict__", {}).setdefault("_once", f"run:{uuid4().hex}"), 1),)
        call_id = call_id or getattr(value, "tool_call_id", None)
    # Without the id of this call, the calls of the conversation cannot be compared with it.
    calls = list(_calls(messages)) if call_id else []
    if info is not None and not passed:
        began = round((info.node_first_attempt_time or 0.0) * 1_000_000)
        execution = (f"node:{info.checkpoint_ns}", began + info.node_attempt)
        passed = (execution,) if calls else (("graph", 1), execution)
    elif calls and not passed:
        passed = ((f"call:{uuid4().hex}", 1),)  # the conversation tells what is a repeat
    if turn is not None and OPENAI.isdisjoint(kinds.values()):
        turn = f"turn:{getattr(info, 'thread_id', None) or ''}:{turn}"
    name = dict(calls).get(call_id or "", call_id)
    return ModelCall(turn, name, passed, frozenset(name for _, name in calls))


# -- LangGraph


def _node_execution() -> Any:
    """The execution of the LangGraph node around this code. A node that is retried or resumed has the same
    `checkpoint_ns`."""
    runtime = sys.modules.get("langgraph.runtime")
    try:
        return None if runtime is None else runtime.get_runtime().execution_info
    except Exception:  # noqa: BLE001 - this code runs in no graph
        return None


# -- the messages of a conversation


def _prompt(messages: Iterable[Any], name: str, default: Any = None) -> Any:
    """A field of the last message of a person: LangGraph's id, or pydantic-ai's run. A run that resumes
    another one has no prompt of its own."""
    prompts = [
        message
        for message in messages
        if getattr(message, "type", None) == "human"
        or any(getattr(part, "part_kind", None) == "user-prompt" for part in getattr(message, "parts", ()))
    ]
    return getattr(prompts[-1], name) if prompts else default


def _calls(messages: Iterable[Any]) -> Iterator[tuple[str, str]]:
    """The ids of the tool calls of a conversation, each with its name. Some providers use an id again: then
    its number counts, too."""
    count: Counter[str] = Counter()
    for message in messages:
        calls: Iterable[Any] = getattr(message, "tool_calls", None) or getattr(message, "parts", ())
        for call in calls:
            call_id: Any = value_of(call, "tool_call_id") or value_of(call, "id")
            is_call = isinstance(call, Mapping) or getattr(call, "part_kind", None) == "tool-call"
            if is_call and call_id:
                count[call_id] += 1
                number = count[call_id]
                yield call_id, call_id if number == 1 else f"{call_id}~{number}"
