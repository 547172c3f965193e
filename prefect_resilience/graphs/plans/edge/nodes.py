"""A plan's nodes as Prefect tasks: the action, with what the node asks for around it."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from contextlib import AbstractContextManager, suppress
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any, cast
from uuid import UUID

from prefect.cache_policies import DEFAULT, CachePolicy
from prefect.client.schemas.objects import TaskRun
from prefect.context import TaskRunContext
from prefect.results import should_persist_result
from prefect.tasks import Task
from prefect.utilities.hashing import hash_objects
from pydantic import ValidationError

from prefect_resilience.base.naming import template_fields
from prefect_resilience.base.policy import nearest, sentence
from prefect_resilience.base.process import setting
from prefect_resilience.durable.effects.policy import Effect
from prefect_resilience.errors.context import ErrorContext
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.graphs.plans.actions import ERROR, Action, Actions
from prefect_resilience.graphs.plans.model import Cache, Node
from prefect_resilience.graphs.plans.reading.mistakes import Mistake
from prefect_resilience.guards.circuits.breaker import CircuitBreaker
from prefect_resilience.guards.circuits.model import CircuitPolicy
from prefect_resilience.guards.circuits.registry import declared
from prefect_resilience.tasks.edge.task import ResilientTask

AnyTask = Task[..., Any]

_recorder: ContextVar[dict[UUID, TaskRun] | None] = ContextVar(
    "prefect_resilience_plan_task_runs", default=None
)


def recording_task_runs(runs: dict[UUID, TaskRun]) -> AbstractContextManager[None]:
    """Have each task run that is submitted in this block put itself into `runs` as it begins.

    There its attempts and times can be read. Task runs of other processes do not come in.
    """
    return setting(_recorder, runs)


class TaskFactory:
    """Makes the tasks of one plan. Nodes that ask for the same share one task, of which each has a copy."""

    def __init__(self, actions: Actions, nodes: Iterable[Node] = ()) -> None:
        self.actions = actions
        self._made: dict[tuple[str, ...], AnyTask] = {}
        self._checked: dict[tuple[str, ...], tuple[str, str]] = {}
        self._circuits: dict[str, CircuitBreaker] = {}
        self.expect(nodes)

    def expect(self, nodes: Iterable[Node]) -> None:
        """Make the circuits that are written out, for nodes that only name them; mistakes come out later."""
        for node in nodes:
            if isinstance(node.circuit, Mapping):
                with suppress(ConfigurationError):
                    self._circuit(node.circuit)

    def action(self, node: Node) -> Action:
        """The action of a node whose type is known to be right."""
        return cast(Action, self.actions.get(node.type))

    def mistakes(self, node: Node, place: str, /) -> list[Mistake]:
        """What is wrong with a node's type, input and options, each with its place: `tasks[3].circuit`."""
        found = self.actions.mistakes(node, place)
        action = self.actions.get(node.type)
        return found if action is None else [*found, *self._wrong_options(node, action, place)]

    def _wrong_options(self, node: Node, action: Action, place: str) -> list[Mistake]:
        if wrong := _said(lambda: self._check_circuit(node, action)):
            return [Mistake(f"{place}.circuit", wrong)]
        key = _key(node, "")
        if key not in self._checked:
            self._checked[key] = self._wrong_task(node)
        field, wrong = self._checked[key]
        return [Mistake(f"{place}{field}", wrong)] if wrong else []

    def _wrong_task(self, node: Node) -> tuple[str, str]:
        """The field, and what Prefect or the action's own options have against it."""
        # Its circuit is not made yet: one that is only named may be written out by another node.
        bare = node.model_copy(update={"circuit": None, "effect": None})
        wrong = _said(lambda: self._make(bare, node.id))
        if wrong or node.effect is None:
            return "", wrong
        return ".effect", _said(lambda: self._make(bare.model_copy(update={"effect": node.effect}), node.id))

    def _check_circuit(self, node: Node, action: Action) -> None:
        written = node.circuit
        if written is None:
            return
        if isinstance(written, str):
            fields = template_fields(written, "circuit")
        else:
            fields = cast(CircuitBreaker, self._circuit(written)).fields
        for name in fields:
            if name not in action.parameters and not action.takes_any:
                raise ConfigurationError(
                    f"{{{name}}} is no input of {node.type!r}{nearest(name, [*action.parameters])}"
                )

    def task(self, node: Node) -> AnyTask:
        """The task of the node's action with the node's options. Raises ConfigurationError."""
        return self._task(node, node.id)

    def _task(self, node: Node, name: str) -> AnyTask:
        key = _key(node, name)
        made = self._made.get(key)
        if made is None:
            made = self._made[key] = self._make(node, name)
        return made

    def named(self, node: Node, name: str, cache_key: str | None = None) -> AnyTask:
        """A copy of the node's task whose run is called `name`."""
        made = copy(self._task(node, name))
        made.name = name
        made.task_run_name = _name_of(name)
        if node.cache:
            made.cache_policy = ActionKey(action=node.type, key=cache_key)
        return made

    def _make(self, node: Node, name: str) -> AnyTask:
        action = self.action(node)
        options: dict[str, Any] = {}
        if node.retry is not None or not action.is_task:
            options["retry"] = node.retry
        if node.timeout is not None:
            options["timeout"] = node.timeout
        if node.circuit is not None:
            options["circuit"] = self._circuit(node.circuit)
        if node.effect is not None:
            options["effect"] = _effect(node.effect, name)
        target: Any = action.target
        if not action.is_task:
            made: AnyTask = ResilientTask(target, **options)
        elif isinstance(target, ResilientTask):
            made = copy(cast("AnyTask", target.with_options(**options) if options else target))
        else:
            made = cast("AnyTask", cast(Any, ResilientTask).wrap(target, **options))
        cast("ResilientTask[..., Any]", made).action_id = node.type
        if made.cache_policy is DEFAULT:
            made.cache_policy = NodeKey()
        if node.cache:
            made.persist_result = True
            if isinstance(node.cache, Cache) and node.cache.ttl is not None:
                made.cache_expiration = timedelta(seconds=node.cache.ttl)
        return made

    def _circuit(self, written: str | Mapping[str, Any] | None) -> CircuitBreaker | None:
        if written is None:
            return None
        if isinstance(written, str):
            known = self._circuits.get(written) or _declared(written)
            return self._circuits.setdefault(written, known or CircuitBreaker(written))
        fields = dict(written)
        name = fields.pop("name", None)
        if not isinstance(name, str):
            raise ConfigurationError('a circuit needs a name, as in {"name": "payments", "open_for": 60}')
        try:
            made = CircuitBreaker.from_policy(name, CircuitPolicy(**fields))
        except ValidationError as error:
            raise ConfigurationError(sentence(CircuitPolicy, error)) from None
        return self._circuits.setdefault(name, made)


def _declared(name: str) -> CircuitBreaker | None:
    """A breaker like the one that the code has under this name."""
    known = declared(name, None)
    return None if known is None else CircuitBreaker.from_policy(name, known.policy)


def _effect(written: str | Mapping[str, Any], name: str) -> Effect:
    """The same call in two nodes or branches is two effects."""
    fields: dict[str, Any] = {"scope": name}
    fields |= {"kind": written} if isinstance(written, str) else written
    return Effect(**fields)


def _key(node: Node, name: str) -> tuple[str, ...]:
    """The same for nodes and branches whose tasks may be the same."""
    options = repr((node.retry, node.timeout, node.circuit, node.effect, node.cache))
    return node.type, "" if node.effect is None else name, options


def _said(make: Callable[[], object]) -> str:
    """What is said against making something; "" if nothing is."""
    try:
        make()
    except Exception as error:  # noqa: BLE001 - Prefect has its own ways to refuse a function
        return str(error)
    return ""


def _name_of(name: str) -> Callable[[], str]:
    """What Prefect asks for the run's name, at its beginning: the moment to note which run it is."""

    def task_run_name() -> str:
        note_task_run()
        return name

    return task_run_name


def note_task_run() -> None:
    """Put the task run that is going on where those of its plan are kept.

    A function of the module, which a worker process finds there: what it reads cannot be sent to it.
    """
    runs, context = _recorder.get(), TaskRunContext.get()
    if runs is not None and context is not None:
        runs[context.task_run.id] = context.task_run


@dataclass
class NodeKey(CachePolicy):
    """Prefect's default key, for each node: two nodes of one run share nothing, a retried run does.

    The error that a handler is given is not part of it: its time is another one each time.
    """

    inner: CachePolicy = field(default_factory=lambda: DEFAULT)

    def compute_key(
        self, task_ctx: TaskRunContext, inputs: dict[str, Any], flow_parameters: dict[str, Any], **kwargs: Any
    ) -> str | None:
        if not should_persist_result():
            return None  # nothing is written under it, and nothing could be found
        key = self.inner.compute_key(task_ctx, _without_error(inputs), flow_parameters, **kwargs)
        return None if key is None else hash_objects("plan-node", task_ctx.task.name, key)


@dataclass
class ActionKey(CachePolicy):
    """A key for every run of every plan: the action, and its input or what the node's `cache` says."""

    action: str = ""
    key: str | None = None

    def compute_key(
        self, task_ctx: TaskRunContext, inputs: dict[str, Any], flow_parameters: dict[str, Any], **kwargs: Any
    ) -> str | None:
        given = _without_error(inputs) if self.key is None else self.key
        return hash_objects("plan-action", self.action, given)


def _without_error(inputs: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in inputs.items()
        if name != ERROR or not isinstance(value, ErrorContext | None)
    }
