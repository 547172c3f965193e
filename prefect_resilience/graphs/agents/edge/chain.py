"""`AgentChain` and `ProviderChain`: call agents in order until one answers."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, TypeVar, cast

from prefect_resilience.base.drive import Blocking, Steps, adrive, drive
from prefect_resilience.base.process import setting
from prefect_resilience.errors.context import ErrorContext
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.errors.secrets.redact import add_note
from prefect_resilience.graphs.agents.edge.person import (
    Notify,
    Person,
    PersonStep,
    check_notify,
    notice_of,
    tell,
)
from prefect_resilience.graphs.agents.edge.registry import AGENTS, PROVIDERS, Agent, AgentStep, Registry
from prefect_resilience.graphs.agents.trace import Trace, trace
from prefect_resilience.guards.fallbacks import Answered, Fallback, Memories

StepOption = str | Fallback | Person | Callable[..., Any]


@dataclass(frozen=True)
class ChainResult(Answered):
    """The result of a chain.

    value: the answer. answered_by: the name of the step that gave it. degraded: whether it is a degraded
        answer.
    attempts: the number of calls of each step, by name; 0 if its circuit rejected them.
    errors: the ErrorContext of each failed step, by name.

    Example:
        >>> def exact(text: str) -> int:
        ...     return int(text)
        >>> result = AgentChain("exact", [Fallback.value(0)], agents={"exact": exact}).call("many")
        >>> result.value, result.answered_by, result.attempts["exact"]
        (0, 'value', 1)
    """

    attempts: Mapping[str, int] = field(default_factory=dict[str, int])
    errors: Mapping[str, ErrorContext] = field(default_factory=dict[str, ErrorContext])


class AgentChain:
    """An agent and its fallbacks in order: simpler agents, a person last.

        chain = AgentChain("builder", ["builder-simple", "manual-mode"])
        result = chain.call("a bridge")            # await chain.acall(...) for async agents
        result.value, result.answered_by, result.degraded

    agent: the name of the first agent, registered by `@agent` or given in `agents`.
    fallbacks: the next ones, in order: names of agents, functions, tasks, `Fallback`s or, as the last one, a
        `Person`.
    agents: functions by their names, for agents that are not registered: `{"builder": build}`.
    notify: gets a `Notice` when no step answered: a notification block or a function.

    Every agent has its own circuit, retries and timeout, and its call is a task run of its own. The next
    agent is called when the attempts of one are used up, or at once if its circuit is open or its error is
    permanent. The first agent's run ends `Fallback` or `Degraded` if another agent answered. Outside of runs
    the chain works in this process, without an API. Only agents in the chain are called.

    A chain can be a fallback: `resilient_task(fallback=chain)`. It is called with the arguments of the first
    agent. Each other agent gets the arguments that it declares, and the ErrorContext as `error`.

    If no step answers, the first agent's own error is raised, with the others in its notes; or `PersonNeeded`
    if a person must take over. Raises ConfigurationError for invalid options.
    """

    registry: Registry = AGENTS

    def __init__(
        self,
        agent: str,
        fallbacks: Iterable[StepOption] = (),
        *,
        agents: Mapping[str, Any] | None = None,
        notify: Notify | None = None,
    ) -> None:
        self._set_up(agent, [agent, *_listed(fallbacks)], agents or {}, notify)

    def _set_up(
        self, name: str, steps: list[StepOption], given: Mapping[str, Any], notify: Notify | None
    ) -> None:
        check_notify(f"{type(self).__name__}({name!r}, notify=...)", notify)
        self.name = name
        self.notify: Notify | None = notify
        self._memories = Memories()
        first = self._found(steps[0], given)
        if not isinstance(first, Agent):
            raise ConfigurationError(
                f"the chain {name!r} begins with {first!r}: a person can only be the last step"
            )
        rest = [self._found(step, given) for step in steps[1:]]
        self._check(first, rest)
        self._first = AgentStep(first, [self._fallback(step, first.name) for step in rest], self._memories)
        self.steps: tuple[str, ...] = (first.name, *(step.name for step in rest))
        self.__signature__: inspect.Signature = self._first.__signature__

    def _found(self, step: Any, given: Mapping[str, Any]) -> Agent | Person | Fallback:
        if isinstance(step, str):
            return self.registry.find(step, given)
        if isinstance(step, Person | Fallback | Agent):
            return step
        if callable(step):
            name = getattr(step, "name", None) or getattr(step, "__name__", type(step).__name__)
            return self.registry.made(name, step)
        raise ConfigurationError(
            f"{step!r} is not a step of a chain: write a name that @{self.registry.kind} registered, "
            f"a function, a Fallback or a Person"
        )

    def _check(self, first: Agent, rest: list[Agent | Person | Fallback]) -> None:
        names = [first.name, *(step.name for step in rest)]
        for name in names:
            if names.count(name) > 1:
                raise ConfigurationError(f"the chain {self.name!r} has {name!r} twice: remove one of them")
        for step in rest[:-1]:
            if isinstance(step, Person):
                raise ConfigurationError(
                    f"the chain {self.name!r} has steps after {step.name!r}: a person must be the last step"
                )

    def _fallback(self, step: Agent | Person | Fallback, first: str) -> Fallback:
        if isinstance(step, Fallback):
            return step
        if isinstance(step, Person):
            return Fallback(PersonStep(step, self.name, first), name=step.name, degraded=step.degraded)
        agent_step = AgentStep(step, [], self._memories)
        return Fallback(agent_step, when=step.when, name=step.name, degraded=step.degraded)

    @property
    def isasync(self) -> bool:
        """Whether the first agent is async: then the chain is awaited."""
        return self._first.isasync

    def call(self, *args: Any, **kwargs: Any) -> ChainResult:
        """Call one step after the other until one answers. For async agents use `acall`."""
        if self.isasync:
            raise ConfigurationError(f"{self.name!r} is async: write await chain.acall(...)")
        return drive(self._asked(args, kwargs))

    async def acall(self, *args: Any, **kwargs: Any) -> ChainResult:
        """As `call`; plain agents run in a thread."""
        if self.isasync:
            return await adrive(self._asked(args, kwargs))
        return await asyncio.to_thread(self.call, *args, **kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """`call`, or `acall` if the first agent is async. Returns the ChainResult."""
        return self.acall(*args, **kwargs) if self.isasync else self.call(*args, **kwargs)

    def __repr__(self) -> str:
        return f"{type(self).__name__}({' -> '.join(self.steps)})"

    def _asked(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Steps[ChainResult]:
        chain_trace = Trace()
        with setting(trace, chain_trace):
            try:
                ran: Answered = yield from self._first.ran(args, kwargs)
            except Exception as error:
                needed = yield from self._nobody(chain_trace, error)
                if needed is None:
                    raise
                raise needed from error
        return ChainResult(
            ran.value,
            ran.answered_by,
            ran.degraded,
            self._in_order(chain_trace.attempts),
            self._in_order(chain_trace.errors),
        )

    def _nobody(self, here: Trace, error: Exception) -> Steps[Exception | None]:
        """No step answered: notify people. Returns the error to raise in place of the first agent's."""
        if self.notify is not None:
            notice = notice_of(self.name, f"{self.name}: no step answered", self._in_order(here.errors))
            trouble = yield Blocking(tell, (self.notify, notice))
            if trouble:
                add_note(error, f"prefect-resilience: {trouble}")
        add_note(error, f"prefect-resilience: no step of the chain {' -> '.join(self.steps)} answered")
        return here.person_needed

    def _in_order(self, by_name: dict[str, V]) -> dict[str, V]:
        return {name: by_name[name] for name in self.steps if name in by_name}


V = TypeVar("V")


class ProviderChain(AgentChain):
    """Providers of one service in the order of their calls, and answers if all of them fail.

        llm = ProviderChain(
            "llm", {"claude": ask_claude, "openai": ask_openai},
            last_known_good=3600, degraded="The assistant is not available at the moment.", notify=tell_us,
        )

    name: the chain's name.
    providers: names that `@provider` registered, or a mapping of names to functions.
    last_known_good: the greatest age, in seconds, of an earlier answer of the first provider to the same
        call; True for any age. In a run it is kept in Prefect's result storage, elsewhere in this process.
    degraded: the last answer: any value, or a function of the call's arguments (and `error`). The run then
        ends `Degraded`.
    notify: gets a `Notice` when no step answered.

    Each provider has its circuit `provider:<name>`, shared by the whole fleet. Only a chain that names a
    provider switches to it.
    """

    registry = PROVIDERS

    def __init__(
        self,
        name: str,
        providers: Mapping[str, Any] | Iterable[StepOption],
        *,
        last_known_good: float | Literal[True] | None = None,
        degraded: Any = None,
        notify: Notify | None = None,
    ) -> None:
        functions = cast("Mapping[str, Any]", providers if isinstance(providers, Mapping) else {})
        steps: list[Any] = _listed(cast("Iterable[StepOption]", providers))
        if not steps:
            raise ConfigurationError(f"the chain {name!r} has no providers: name at least one")
        if last_known_good is not None:
            steps.append(Fallback.last_known_good(None if last_known_good is True else last_known_good))
        if callable(degraded):
            steps.append(Fallback(degraded, name="degraded", degraded=True))
        elif degraded is not None:
            steps.append(Fallback.value(degraded, name="degraded"))
        self._set_up(name, steps, functions, notify)


def _listed(steps: Iterable[StepOption]) -> list[StepOption]:
    if isinstance(steps, str):
        raise ConfigurationError(f"the steps of a chain must be a list: write [{steps!r}]")
    return list(steps)
