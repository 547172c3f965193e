"""What a task run ends with when another one than its function answered: a green state with a name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

from prefect.client.schemas.objects import State
from prefect.states import Completed
from pydantic import PrivateAttr

from prefect_resilience.calls.attempt import Substitute
from prefect_resilience.durable.effects.asking import Replayed
from prefect_resilience.errors.context import ErrorContext
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.guards.decomposition.answered import Decomposed

if TYPE_CHECKING:
    from prefect_resilience.tasks.edge.task_runs import TaskSurroundings


class ReplacedState(State[Any]):
    """`Completed`, under the name `Fallback` or `Degraded` with the error that made it necessary, or under
    the name `Replayed` without one."""

    _error_context: ErrorContext | None = PrivateAttr(default=None)
    _answered_by: str | None = PrivateAttr(default=None)

    @property
    def error_context(self) -> ErrorContext | None:
        return self._error_context

    @property
    def answered_by(self) -> str | None:
        """The name of the fallback that answered."""
        return self._answered_by


def as_state(outcome: Substitute, here: TaskSurroundings) -> State[Any]:
    """A substitute as the engine wants it: a green state with a name.

    Its result has a key of its own, under which the engine stores it if results are kept: a fallback's value
    must not be found under the primary's cache key later on.
    """
    result = here.context.result_store.create_result_record(outcome.answer.value, key=uuid4().hex)
    name = "Degraded" if outcome.answer.fallback.degraded else "Fallback"
    state = Completed(cls=ReplacedState, name=name, message=redact(outcome.message), data=result)
    cast(ReplacedState, state)._error_context = outcome.context  # pyright: ignore[reportPrivateUsage]
    cast(ReplacedState, state)._answered_by = outcome.answer.fallback.name  # pyright: ignore[reportPrivateUsage]
    return state


def as_answer(outcome: Any, here: TaskSurroundings) -> Any:
    """What the engine gets: a value, or a state with a name where another one than the function answered."""
    if isinstance(outcome, Substitute):
        return as_state(outcome, here)
    if isinstance(outcome, Replayed):
        # The real result: it may stand under the run's own cache key.
        message = redact(outcome.message)
        return Completed(cls=ReplacedState, name="Replayed", message=message, data=outcome.value)
    if isinstance(outcome, Decomposed):
        message, data = redact(outcome.message), outcome.value
        if outcome.replaced:
            data = here.context.result_store.create_result_record(data, key=uuid4().hex)
        name = "Degraded" if outcome.degraded else "Decomposed"
        state = Completed(cls=ReplacedState, name=name, message=message, data=data)
        cast(ReplacedState, state)._error_context = outcome.context  # pyright: ignore[reportPrivateUsage]
        return state
    return outcome


def value_of(outcome: Any) -> Any:
    """What the caller of a task gets: a substitute's value rather than its state."""
    if isinstance(outcome, ReplacedState):
        return cast(Any, outcome.data).result
    return outcome
