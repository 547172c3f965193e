"""One agent of a chain, asked in a task run of its own, or in this process where no run is going on."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from collections.abc import Sequence as Items
from dataclasses import dataclass
from typing import Any

from prefect.client.schemas.objects import State
from prefect.context import FlowRunContext, TaskRunContext

from prefect_resilience.base.drive import Blocking, Invoke, Sequence, adrive, drive
from prefect_resilience.base.edge.settings import enabled
from prefect_resilience.calls.attempt import Substitute
from prefect_resilience.errors.context import ErrorContext, error_context
from prefect_resilience.errors.taxonomy import ErrorCategory
from prefect_resilience.graphs.agents.edge.alone import Memories, alone
from prefect_resilience.graphs.agents.edge.registry import Agent
from prefect_resilience.graphs.agents.trace import note
from prefect_resilience.graphs.routing.edge.nodes import value_of
from prefect_resilience.graphs.routing.edge.upstream import Failed, NeverRan, ending_of
from prefect_resilience.guards.decomposition.answered import Decomposed
from prefect_resilience.guards.fallbacks.model import Fallback
from prefect_resilience.tasks.edge.answers import ReplacedState
from prefect_resilience.tasks.edge.task import ResilientTask


@dataclass(frozen=True, slots=True)
class Ran:
    """What an agent's run gave, and who answered in it."""

    value: Any
    by: str
    degraded: bool = False


class Step:
    """A callable that a `Fallback` can ask: it looks like the agent's function."""

    def __init__(self, agent: Agent, fallbacks: Items[Fallback], memories: Memories) -> None:
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

    def ran(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[Ran]:
        """Ask it; raises its error. What it came to is in the trace of the chain's call."""
        if FlowRunContext.get() is not None or TaskRunContext.get() is not None:
            return (yield from self._as_run(args, kwargs))
        if not enabled():
            return Ran((yield Invoke(self.function, args, kwargs)), self.name, self.agent.degraded)
        return (yield from self._alone(args, kwargs))

    def _as_run(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[Ran]:
        state: State[Any] = yield Invoke(self.task, args, {**kwargs, "return_state": True})
        ending = yield Blocking(ending_of, (state,))
        if isinstance(ending, NeverRan):
            raise RuntimeError(f"the run of {self.name!r} did not take place: {ending.why}")
        if isinstance(ending, Failed):
            self._failed(ending.context)
            raise ending.error
        replaced = error_context(state)
        if replaced is None or not isinstance(state, ReplacedState) or state.answered_by is None:
            note(self.name, 1)
            return Ran(value_of(ending), self.name, self.agent.degraded)
        self._failed(replaced)
        return Ran(value_of(ending), state.answered_by, state.name == "Degraded")

    def _alone(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Sequence[Ran]:
        try:
            value = yield from alone(self.name, self.task.guard, self._memories, args, kwargs)
        except Exception as error:
            context = error_context(error)
            if context is not None:
                self._failed(context)
            raise
        if not isinstance(value, Substitute):
            note(self.name, 1)
            given = value.value if isinstance(value, Decomposed) else value
            return Ran(given, self.name, self.agent.degraded)
        self._failed(value.context)
        answered = value.answer.fallback
        return Ran(value.answer.value, answered.name, answered.degraded)

    def _failed(self, context: ErrorContext) -> None:
        refused = context.category is ErrorCategory.CIRCUIT_OPEN
        note(self.name, 0 if refused else context.attempt, context)
