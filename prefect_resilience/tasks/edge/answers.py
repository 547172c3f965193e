"""The end of a task run that was not answered by its own function: a completed state with a name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from contextlib import suppress
from copy import copy
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast
from uuid import uuid4

from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.context import TagsContext
from prefect.exceptions import ObjectNotFound
from prefect.states import Completed
from prefect.tasks import Task
from prefect.transactions import get_transaction
from prefect.utilities.callables import explode_variadic_parameter, parameters_to_args_kwargs
from pydantic import PrivateAttr

from prefect_resilience.base.outcomes import is_failed, is_state
from prefect_resilience.calls.decomposing import with_changes
from prefect_resilience.calls.model import Decomposed, Substitute
from prefect_resilience.durable.effects.current import Replayed
from prefect_resilience.errors.context import ErrorContext
from prefect_resilience.errors.requests import SubtaskRequest
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.tasks.edge.logs import note_logged_state
from prefect_resilience.tasks.edge.long_waits import raise_if_parked

if TYPE_CHECKING:
    from prefect_resilience.tasks.edge.task_runs import TaskSurroundings


class ReplacedState(State[Any]):
    """A `Completed` state named `Fallback` or `Degraded`, with the error that caused it, or named `Replayed`,
    without an error."""

    _error_context: ErrorContext | None = PrivateAttr(default=None)
    _answered_by: str | None = PrivateAttr(default=None)

    @property
    def error_context(self) -> ErrorContext | None:
        return self._error_context

    @property
    def answered_by(self) -> str | None:
        """The name of the fallback that answered."""
        return self._answered_by


def as_answer(outcome: Any, here: TaskSurroundings) -> Any:
    """The engine's answer: a value, or a named state if something other than the function answered.

    The result of a fallback gets a key of its own, under which the engine stores it if results are persisted.
    Later runs must not find it under the primary's cache key.
    """
    if isinstance(outcome, Substitute):
        fallback = outcome.answer.fallback
        name = "Degraded" if fallback.degraded else "Fallback"
        state = _make_completed(name, outcome.message, _apart(outcome.answer.value, here), outcome.context)
        state._answered_by = fallback.name  # pyright: ignore[reportPrivateUsage]
        return state
    if isinstance(outcome, Replayed):
        # The real result, so it may be stored under the run's own cache key.
        return _make_completed("Replayed", outcome.message, outcome.value)
    if isinstance(outcome, Decomposed):
        data = _apart(outcome.value, here) if outcome.replaced else outcome.value
        name = "Degraded" if outcome.degraded else "Decomposed"
        return _make_completed(name, outcome.message, data, outcome.context)
    if is_failed(outcome):
        # Prefect would keep it as a result, and a later pass of the flow would find a completed one.
        if (transaction := get_transaction()) is not None:
            transaction.write_on_commit = False
        note_logged_state(outcome)
        if here.guard.dead_letter and is_state(outcome) and outcome.is_crashed():
            _letter_of_crash(outcome, here)
    return outcome


def _apart(value: Any, here: TaskSurroundings) -> Any:
    return here.context.result_store.create_result_record(value, key=uuid4().hex)


def _make_completed(name: str, message: str, data: Any, context: ErrorContext | None = None) -> ReplacedState:
    state = cast(ReplacedState, Completed(cls=ReplacedState, name=name, message=redact(message), data=data))
    state._error_context = context  # pyright: ignore[reportPrivateUsage]
    return state


def _letter_of_crash(state: State[Any], here: TaskSurroundings) -> None:
    """Keep a dead letter of a run that ends in its own `Crashed` state: Prefect calls no hook for it."""
    from prefect_resilience.tasks.edge.run_hooks import keep_dead_letter  # imported late: it is large

    if not (state.state_details.task_run_id or state.state_details.flow_run_id):
        keep_dead_letter(here.task, here.task_run, state)


def value_of(outcome: Any) -> Any:
    """The value for the caller of a task: a substitute's value instead of its state."""
    if isinstance(outcome, ReplacedState):
        return cast(Any, outcome.data).result
    raise_if_parked(outcome)
    return outcome


LABELS = "__prefect_resilience_labels__"
"""The attribute with a part's suffix to its task's name: "[1/2][2/2]" is the second half of a first half."""


@dataclass(frozen=True)
class Again:
    """Repeats an earlier call of a task, flow or function, with some arguments changed."""

    called: Any
    parameters: Mapping[str, Any]
    """In Prefect's form: `*args` and `**kwargs` each as one entry under their own name."""

    def __call__(self, changes: Mapping[str, Any]) -> Any:
        """The result of the call; an awaitable for an async one."""
        fn: Any = getattr(self.called, "fn", self.called)
        args, kwargs = parameters_to_args_kwargs(fn, with_changes(fn, self.parameters, changes))
        if hasattr(fn, "__prefect_self__") or hasattr(fn, "__prefect_cls__"):
            args = args[1:]  # Prefect adds the bound object itself
        return self.called(*args, **kwargs)


def part_of(
    task: Task[..., Any],
    parameters: Mapping[str, Any],
    changes: Mapping[str, Any],
    label: str,
    without_tags: set[str],
) -> Callable[[], Any]:
    """A function that runs a part of a task's work: the same task, with a label in its run's name."""
    part = copy(task)
    labels = f"{getattr(task, LABELS, '')}[{label}]"
    if part.task_run_name is None or hasattr(task, LABELS):
        setattr(part, LABELS, labels)
        part.task_run_name = f"{task.name}{labels}".replace("{", "{{").replace("}", "}}")
    call = Again(part, parameters)
    if not without_tags:
        return lambda: call(changes)
    part.tags = part.tags - without_tags
    around = TagsContext.get().current_tags - without_tags
    if not task.isasync:

        def in_turn() -> Any:
            with TagsContext(current_tags=around):
                return call(changes)

        return in_turn

    async def a_in_turn() -> Any:
        with TagsContext(current_tags=around):
            return await call(changes)

    return a_in_turn


def read_limited_tags(tags: set[str]) -> set[str]:
    """The tags that have a concurrency limit on the server. Empty if the server cannot be asked."""
    limited: set[str] = set()
    if not tags:
        return limited
    with suppress(Exception), get_client(sync_client=True) as client:
        for tag in tags:
            with suppress(ObjectNotFound):
                client.read_concurrency_limit_by_tag(tag)
                limited.add(tag)
    return limited


def request_of_step(
    name: str, step: Any, args: tuple[Any, ...], kwargs: Mapping[str, Any]
) -> SubtaskRequest | None:
    """The request of a function or task that runs as a step; None if its signature cannot be read."""
    fn = getattr(step, "fn", step)
    try:
        bound = inspect.signature(fn).bind(*args, **kwargs)
    except (TypeError, ValueError):
        return None
    bound.apply_defaults()
    arguments = dict(bound.arguments)
    return SubtaskRequest(name, explode_variadic_parameter(fn, arguments), "step", Again(step, arguments), fn)
