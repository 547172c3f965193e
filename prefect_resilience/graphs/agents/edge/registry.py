"""Agents and providers by name, each with its policies."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from copy import copy
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, TypeVar, cast

from prefect.client.schemas.objects import State
from prefect.context import FlowRunContext, TaskRunContext
from prefect.tasks import Task

from prefect_resilience.base.drive import Blocking, Invoke, Steps, adrive, drive
from prefect_resilience.base.edge.current_settings import is_enabled
from prefect_resilience.base.naming import MAIN
from prefect_resilience.base.outcomes import generates, require_result, take_returned
from prefect_resilience.base.policy import nearest
from prefect_resilience.calls.edge.local import LocalRun, outcome_of
from prefect_resilience.calls.model import Decomposed, Substitute
from prefect_resilience.errors.context import ErrorContext, error_context
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.graphs.agents.trace import counted, note
from prefect_resilience.graphs.routing.edge.targets import as_function
from prefect_resilience.graphs.routing.edge.upstream import FailedUpstream, NeverRan, ending_of, value_of
from prefect_resilience.guards.circuits.breaker import CircuitBreaker
from prefect_resilience.guards.fallbacks import Answered, Fallback, Memories
from prefect_resilience.tasks.edge.answers import ReplacedState
from prefect_resilience.tasks.edge.task import ResilientTask

if TYPE_CHECKING:
    from prefect_resilience.graphs.agents.edge.person import Person

T = TypeVar("T")
NOT_HERE = {
    "name": "the name is the first argument",
    "fallback": "the chain has the fallbacks",
    "effect": "declare it on a separate task that the function calls",
}


@dataclass(frozen=True)
class Agent:
    """A name, its function or task, and its own policies.

    kind: "agent" or "provider"; the circuit is `<kind>:<name>` unless another one is given.
    options: those of `resilient_task` except `effect` and `fallback`, because the chain has the fallbacks.
    degraded: a run with its answer ends `Degraded`.
    when: the errors of the first agent after which it is called, as in `Fallback`.
    """

    name: str
    target: Any
    kind: str = "agent"
    options: Mapping[str, Any] = field(default_factory=dict[str, Any])
    degraded: bool = False
    when: Any = None

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip():  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f'write a name, as in @{self.kind}("builder")')
        if not callable(self.target):
            raise ConfigurationError(
                f"the {self.kind} {self.name!r} must be a function or a task, not {self.target!r}"
            )
        if generates(getattr(self.target, "fn", self.target)):
            raise ConfigurationError(f"the {self.kind} {self.name!r} is a generator: return one value")
        for name, why in NOT_HERE.items():
            if name in self.options:
                raise ConfigurationError(f"the {self.kind} {self.name!r} does not accept {name}=: {why}")

    @property
    def place(self) -> str:
        function = inspect.unwrap(getattr(self.target, "fn", self.target))
        module = "__main__" if function.__module__ in MAIN else function.__module__
        return f"{module}:{getattr(function, '__qualname__', type(function).__name__)}"

    def task(self, fallbacks: list[Any]) -> ResilientTask[..., Any]:
        """A task of this name with its own circuit, retries, deadline and limits.

        A given task keeps its policies unless the agent's options replace them.
        """
        options: dict[str, Any] = {"name": self.name, **self.options}
        target = self.target
        if not isinstance(target, Task):
            target = ResilientTask(as_function(target))
        elif not isinstance(target, ResilientTask):
            target = cast("Any", ResilientTask).wrap(target)
        task = copy(cast("ResilientTask[..., Any]", target))
        task.guard = replace(task.guard, fn=counted(task.guard.fn, self.name))
        if task.guard.circuit is None and "circuit" not in options:
            options["circuit"] = self.circuit()
        return task.with_options(**options, fallback=[*task.guard.fallbacks, *fallbacks])

    def circuit(self) -> CircuitBreaker:
        """The agent's own circuit, the same in every chain."""
        braces = self.name.replace("{", "{{").replace("}", "}}")
        return CircuitBreaker(f"{self.kind}:{braces}")


def _source(made: Agent | Person) -> tuple[str, int] | None:
    """The file and the line of an agent's function."""
    target = getattr(made, "target", None)
    code = getattr(inspect.unwrap(getattr(target, "fn", target)), "__code__", None) if target else None
    return None if code is None else (code.co_filename, code.co_firstlineno)


class Registry:
    """The agents registered by `@agent` or `@provider`."""

    def __init__(self, kind: str) -> None:
        self.kind = kind
        self._known: dict[str, Agent | Person] = {}

    def add(self, made: Agent | Person) -> None:
        """Raises ConfigurationError if another agent has the name."""
        earlier = self._known.get(made.name)
        # Not for a module that a worker loads again as a script, or a notebook cell that was run again.
        if earlier is not None and earlier.place != made.place and _source(earlier) != (_source(made) or 0):
            raise ConfigurationError(
                f"the {self.kind} {made.name!r} is registered twice: as {earlier.place} and as {made.place}; "
                f"give one of them another name"
            )
        self._known[made.name] = made

    def find(self, name: str, given: Mapping[str, Any]) -> Agent | Person:
        """The agent of this name, given or registered."""
        if name in given:
            return self.made(name, given[name])
        if name in self._known:
            return self._known[name]
        names = [*given, *self._known]
        near = nearest(name, names) if names else f": write @{self.kind}({name!r}) above a function"
        raise ConfigurationError(f"unknown {self.kind} {name!r}{near}")

    def made(self, name: str, target: Any, /, **options: Any) -> Agent | Person:
        from prefect_resilience.graphs.agents.edge.person import Person

        if isinstance(target, Person):
            return replace(target, name=name)
        degraded, when = options.pop("degraded", False), options.pop("when", None)
        return Agent(name, target, self.kind, options, degraded, when)


AGENTS = Registry("agent")
PROVIDERS = Registry("provider")


def agent(name: str, /, **options: Any) -> Callable[[T], T]:
    """Register an agent: a function, plain or async, a task, or a `Person`; returns it unchanged.

        @agent("builder", retry=Retry(attempts=3), timeout=120)
        async def build(spec: str) -> str: ...

    Each agent has a circuit of its own, `agent:<name>`, shared by the whole fleet, and retries like any
    resilient task. `options` are those of `resilient_task` (`retry`, `circuit`, `timeout`, `limits`,
    `classify`, `tags` ...) except `fallback` and `effect`; also `degraded=True` for a degraded answer, and
    `when=` for the errors after which it is called. Raises ConfigurationError if the name is taken.
    """
    return _registering(AGENTS, name, options)


def provider(name: str, /, **options: Any) -> Callable[[T], T]:
    """Register a provider for a `ProviderChain`; as `agent`, with the circuit `provider:<name>`.

    Example:
        >>> @provider("local", timeout=20)
        ... def ask_local(prompt: str) -> str:
        ...     return prompt.upper()
        >>> ProviderChain("llm", ["local"]).call("hello").value
        'HELLO'
    """
    return _registering(PROVIDERS, name, options)


def _registering(registry: Registry, name: str, options: Mapping[str, Any]) -> Callable[[T], T]:
    def register(target: T) -> T:
        registry.add(registry.made(name, target, **options))
        return target

    return register


class AgentStep:
    """A callable for a `Fallback`, with the signature of the agent's function."""

    def __init__(self, agent: Agent, fallbacks: Sequence[Fallback], memories: Memories) -> None:
        self.agent = agent
        self.name: str = agent.name
        self.task: ResilientTask[..., Any] = agent.task(list(fallbacks))
        self.isasync: bool = self.task.guard.isasync
        self.function: Callable[..., Any] = self.task.guard.fn
        self.__signature__: inspect.Signature = inspect.signature(self.function)
        self._memories = memories

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._acall(args, kwargs) if self.isasync else drive(self.ran(args, kwargs)).value

    async def _acall(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        return (await adrive(self.ran(args, kwargs))).value

    def ran(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Steps[Answered]:
        """Call the agent. Raises its error. Attempts and errors are recorded in the chain's trace."""
        if FlowRunContext.get() is not None or TaskRunContext.get() is not None:
            return (yield from self._as_run(args, kwargs))
        if not is_enabled():
            return Answered((yield Invoke(self.function, args, kwargs)), self.name, self.agent.degraded)
        return (yield from self._alone(args, kwargs))

    def _as_run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Steps[Answered]:
        state: State[Any] = yield Invoke(self.task, args, {**kwargs, "return_state": True})
        ending = yield Blocking(ending_of, (state,))
        if isinstance(ending, NeverRan):
            raise RuntimeError(f"the task run of {self.name!r} did not start: {ending.why}")
        if isinstance(ending, FailedUpstream):
            self._failed(ending.context)
            raise ending.error
        replaced = error_context(state)
        if replaced is None or not isinstance(state, ReplacedState) or state.answered_by is None:
            note(self.name, 1)
            return Answered(value_of(ending), self.name, self.agent.degraded)
        self._failed(replaced)
        return Answered(value_of(ending), state.answered_by, state.name == "Degraded")

    def _alone(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Steps[Answered]:
        try:
            run = LocalRun(self.name, self.task.guard, args, kwargs, self._memories)
            value = require_result((yield from outcome_of(run, threaded=True)), self.function)
        except Exception as error:
            take_returned(self.function, error)
            context = error_context(error)
            if context is not None:
                self._failed(context)
            raise
        if not isinstance(value, Substitute):
            note(self.name, 1)
            answer = value.value if isinstance(value, Decomposed) else value
            return Answered(answer, self.name, self.agent.degraded)
        self._failed(value.context)
        answered = value.answer.fallback
        return Answered(value.answer.value, answered.name, answered.degraded)

    def _failed(self, context: ErrorContext) -> None:
        note(self.name, context.attempts_made, context)
