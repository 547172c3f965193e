"""`once`: a tool of an agent, called once in each run or turn, whatever the agent's framework repeats."""

from __future__ import annotations

import dis
import functools
import inspect
import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from types import CellType
from typing import TYPE_CHECKING, Any, Literal, ParamSpec, TypeVar, cast, overload
from uuid import uuid4

from typing_extensions import TypedDict, Unpack

from prefect_resilience.base.drive import Blocking, Steps, adrive, drive
from prefect_resilience.base.edge.current_settings import is_enabled
from prefect_resilience.base.naming import fill, storable, template_fields
from prefect_resilience.base.outcomes import generates, is_coroutine_function
from prefect_resilience.base.policy import arguments_of
from prefect_resilience.base.text import utc_text
from prefect_resilience.calls.edge.agent_contexts import (
    ModelCall,
    context_parameters,
    hints_of,
    read_contexts,
    tells_turn,
)
from prefect_resilience.calls.edge.call_options import check_fields, make_guard
from prefect_resilience.calls.edge.local import LocalRun, call_guarded
from prefect_resilience.calls.model import Guard
from prefect_resilience.durable.effects.current import CallStart
from prefect_resilience.durable.effects.evidence import is_request
from prefect_resilience.durable.effects.ledger import place_of
from prefect_resilience.durable.effects.opening import BatchMarks, batches, check_own_effects
from prefect_resilience.durable.effects.policy import Effect
from prefect_resilience.errors.exceptions import (
    ConfigurationError,
    EffectBusy,
    InDoubt,
    RepeatedEffect,
    ResultNotKept,
)
from prefect_resilience.errors.taxonomy import bounded
from prefect_resilience.guards.retries.policy import NO_RETRY
from prefect_resilience.telemetry.payloads import CallReport

if TYPE_CHECKING:
    from prefect_resilience.durable.effects.model import Pass

P = ParamSpec("P")
R = TypeVar("R")
Scope = str | Callable[..., Any] | None


class OnceOptions(TypedDict, total=False):
    """The options of `once`."""

    key: str | None
    scope: Scope
    verify: Callable[..., Any] | None
    unknown: Literal["raise", "tell"]


@overload
def once(tool: Callable[P, R], /, **options: Unpack[OnceOptions]) -> Callable[P, R]: ...


@overload
def once(**options: Unpack[OnceOptions]) -> Callable[[Callable[P, R]], Callable[P, R]]: ...


def once(
    tool: Any = None,
    key: str | None = None,
    scope: Scope = None,
    verify: Callable[..., Any] | None = None,
    unknown: Literal["raise", "tell"] = "raise",
) -> Any:
    """Make the side effect of an agent's tool happen once in a run or turn, in any framework.

    The tool keeps its signature, annotations and docstring. A call is recognized by the scope, the tool and
    its arguments. If the scope runs again (a retry, a resume, another process), the recorded result is
    returned. If the model asks for the same call a second time, it gets a sentence that says so.

    key: a template over the arguments that identify the call, such as "refund:{order_id}". Default: all of
        them.
    scope: the run or turn: a text, a template over the arguments, or a function of those of the arguments
        that it names. Default: read from the framework's own context argument, such as pydantic-ai's
        `RunContext` or LangGraph's `ToolRuntime`.
    verify: asks the receiver about an earlier call with an unknown outcome, as in `Effect(verify=)`.
    unknown: what happens if the outcome stays unknown: "raise" raises InDoubt, "tell" returns a sentence for
        the model.

    Raises ConfigurationError if nothing tells the scope.

    Example:
        >>> @once(scope="turn-17", key="transfer:{to}")
        ... def transfer(to: str, amount: int) -> str:
        ...     "Transfer money."
        ...     return f"{amount} sent to {to}"
        >>> transfer("bob", 50)
        '50 sent to bob'
    """
    if unknown not in ("raise", "tell"):
        raise ConfigurationError(f'once(unknown={unknown!r}): write "raise" or "tell"')
    # Its scope tells Effect that the key may be one of a nested function.
    effect = Effect(key=key, verify=verify, scope="once")
    decorate = partial(_decorate, effect=effect, scope=scope, tells=unknown == "tell")
    return decorate if tool is None else decorate(tool)


@dataclass(frozen=True, slots=True)
class OnceTool:
    """A tool that happens once: what is known when it is decorated."""

    guard: Guard
    scope: Scope
    tells: bool
    contexts: dict[str, str]
    """The parameters that the framework fills in, each with its kind."""


def _decorate(tool: Any, *, effect: Effect, scope: Scope, tells: bool) -> Any:
    if not inspect.isroutine(tool) or generates(tool):
        raise ConfigurationError(
            f"once() wraps a function with one result, not {tool!r:.80}: write @once below the framework's "
            "own decorator"
        )
    isasync, hints = is_coroutine_function(tool), hints_of(tool)
    contexts = context_parameters(hints)
    if effect.key is None:
        _check_enclosed(tool)
    _check_scope(scope, tool, scope is not None or tells_turn(contexts, hints))
    guard = make_guard(tool, isasync, NO_RETRY, {"effect": effect})
    once_tool = OnceTool(guard, scope, tells, contexts)

    def call(*args: Any, **kwargs: Any) -> Any:
        return drive(_steps(once_tool, args, kwargs)) if is_enabled() else tool(*args, **kwargs)

    async def call_async(*args: Any, **kwargs: Any) -> Any:
        return await (adrive(_steps(once_tool, args, kwargs)) if is_enabled() else tool(*args, **kwargs))

    wrapper: Any = functools.wraps(tool)(call_async if isasync else call)
    # Some frameworks read annotations in the module of the wrapper.
    wrapper.__annotations__ = hints
    return wrapper


def _check_scope(scope: Scope, tool: Callable[..., Any], is_known: bool) -> None:
    name = tool.__name__
    if not is_known:
        raise ConfigurationError(
            f"once({name}) needs the run or turn in which the tool is called once: declare the framework's "
            f"context argument if it tells it (RunContext, ToolRuntime), or write scope="
        )
    if isinstance(scope, str):
        check_fields(f"the scope of once({name})", template_fields(scope, "scope"), tool)
    elif scope is not None and (not callable(scope) or is_coroutine_function(scope)):
        raise ConfigurationError(
            f"scope={scope!r:.60} of once({name}) is neither a text nor a plain function"
        )


def _check_enclosed(tool: Any) -> None:
    """Raise ConfigurationError if an object, or plain values of the enclosing function, tell two tools of one
    name apart."""
    function: Any = inspect.unwrap(tool)
    if not hasattr(function, "__code__"):
        return
    # A variable that the tool itself changes is a counter or a cache.
    changed = {step.argval for step in dis.get_instructions(function) if step.opname == "STORE_DEREF"}
    cells = zip(function.__code__.co_freevars, function.__closure__ or (), strict=True)
    unseen = [name for name, cell in cells if name not in changed and _is_plain(cell)]
    unseen += ["self"] * (inspect.ismethod(tool) or inspect.ismethod(function))
    if unseen:
        raise ConfigurationError(
            f"once({tool.__name__}) needs a key: it uses {unseen[0]!r}, which is not in its arguments; write "
            f'key="{tool.__name__}:...", another one for each value'
        )


def _is_plain(cell: CellType) -> bool:
    try:
        return isinstance(cell.cell_contents, str | bytes | int | float)
    except ValueError:  # the enclosing function sets it later
        return False


# -- one call


class OnceRun(LocalRun):
    """One call of a tool."""

    __slots__ = ("_begun", "_model_call", "_scope", "tool")

    may_go_on = False

    def __init__(self, tool: OnceTool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        super().__init__(tool.guard.fn.__name__, tool.guard, args, kwargs)
        self.tool: OnceTool = tool
        values = super().parameters
        self._model_call: ModelCall = read_contexts(tool.contexts, values)
        self._scope = storable(self._scope_of(values))
        self._begun = CallStart(self._model_call.name or uuid4().hex, self._model_call.conversation)

    def _scope_of(self, values: Mapping[str, Any]) -> str:
        scope: Any = self.tool.scope
        if isinstance(scope, str):
            return fill(scope, values, "scope")
        value = self._model_call.turn if scope is None else scope(**arguments_of(scope, values))
        if value is None or not str(value).strip():
            source = "its context argument" if scope is None else "its scope function"
            raise ConfigurationError(
                f"{self.name!r} was not called: {source} tells no run or turn, but {value!r}; write scope="
            )
        return str(value)

    @property
    def parameters(self) -> Mapping[str, Any]:
        """The arguments that the model chose."""
        own = super().parameters.items()
        return {name: _canonical(value) for name, value in own if name not in self.tool.contexts}

    def start(self) -> CallStart:
        return self._begun

    def batch_id(self) -> str:
        check_own_effects(self.ledger(), self._scope)
        return self._scope

    def passed(self) -> Pass:
        return self._model_call.passed or super().passed() or ((batches.process, 1),)

    def marks(self) -> BatchMarks | None:
        return None if self.identity["flow_run_id"] is None else self.marks_under(super().passed()[0])

    def note_external_begun(self, store_url: str) -> None:
        """The mark on a task run is about the effects of its flow's batch, and this is one of a turn."""

    def log(self, report: CallReport) -> None:
        """A sentence for the model, and a request to the framework, do not count as failures of the call."""
        if report.error is None or not (isinstance(report.error, RepeatedEffect) or is_request(report.error)):
            super().log(report)

    def is_about(self, error: RepeatedEffect | ResultNotKept) -> bool:
        """Whether the error is about this call, not about an effect inside the tool."""
        own = self._begun.key
        return own is not None and (error.key, error.batch_id) == (own.key, self._scope)


def _canonical(value: Any) -> Any:
    """A number without a fraction as an integer, also inside lists and mappings: JSON does not tell 5 and 5.0
    apart, and models write both."""
    if type(value) is float and value.is_integer():
        return int(value)
    if type(value) is list:
        return [_canonical(item) for item in cast("list[Any]", value)]
    if type(value) is dict:
        return {name: _canonical(item) for name, item in cast("dict[Any, Any]", value).items()}
    return value


def _steps(tool: OnceTool, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Steps[Any]:
    run = OnceRun(tool, args, kwargs)
    try:
        return (yield from call_guarded(run))
    except (RepeatedEffect, ResultNotKept) as error:
        if not run.is_about(error):
            raise
        return (yield Blocking(_answer_repeat, (run, error)))
    except (InDoubt, EffectBusy) as error:
        if not tool.tells:
            raise
        return (
            f"It is unknown whether this call of {run.name} took place, and it was not made again: {error}. "
            f"Do not repeat it; say that a person must check, and record the outcome with "
            f"`prefect-resilience batches settle {error.batch_id} {error.key}`."
        )


def _answer_repeat(run: OnceRun, error: RepeatedEffect | ResultNotKept) -> str:
    """The sentence for a model that repeats a call, or for a run whose result was not JSON."""
    stored = run.ledger().store.load(place_of(error.batch_id, error.key))
    effect: dict[str, Any] = {} if stored is None else stored.value
    if effect.get("state") != "done":
        began = utc_text(effect.get("intended_at"))
        return f"Not repeated: the same call of {run.name} began at {began} and is still in progress."
    kept = effect["result"]
    result = json.dumps(kept["value"], ensure_ascii=False) if "value" in kept else "not kept"
    return (
        f"Not repeated: {run.name} with these arguments was done at {utc_text(effect['settled_at'])}, "
        f"result: {bounded(result, 2_000)}. To do it again, say in its arguments what differs."
    )
