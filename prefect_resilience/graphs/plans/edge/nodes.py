"""A plan's nodes as Prefect tasks: the action with the node's options, and its parameters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, suppress
from contextvars import ContextVar
from copy import copy
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, cast
from uuid import UUID

from prefect.cache_policies import DEFAULT, CachePolicy
from prefect.client.schemas.objects import TaskRun
from prefect.context import TaskRunContext
from prefect.results import should_persist_result
from prefect.tasks import Task
from prefect.utilities.hashing import hash_objects

from prefect_resilience.base.naming import template_fields
from prefect_resilience.base.plain import shortly
from prefect_resilience.base.policy import nearest
from prefect_resilience.base.process import setting
from prefect_resilience.errors.context import ErrorContext
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.graphs.plans.actions import ERROR, Action, Actions
from prefect_resilience.graphs.plans.lookups import Rendering
from prefect_resilience.graphs.plans.model import Cache, FanOut, Node, NodeCircuit
from prefect_resilience.graphs.plans.reading.mistakes import Place, Wrong
from prefect_resilience.graphs.plans.templates import render
from prefect_resilience.guards.circuits.breaker import CircuitBreaker
from prefect_resilience.guards.circuits.model import CircuitPolicy
from prefect_resilience.guards.circuits.registry import circuit_in_use
from prefect_resilience.tasks.edge.task import ResilientTask

AnyTask = Task[..., Any]

_recorder: ContextVar[dict[UUID, TaskRun] | None] = ContextVar(
    "prefect_resilience_plan_task_runs", default=None
)


def recording_task_runs(runs: dict[UUID, TaskRun]) -> AbstractContextManager[None]:
    """Task runs that are submitted in this block add themselves to `runs` when they begin.

    Their attempts and times are read from there. Task runs in other processes are missing.
    """
    return setting(_recorder, runs)


@dataclass(frozen=True, slots=True)
class Job:
    """A task to submit, for a node or for the branch with this `index`."""

    node: Node
    task: AnyTask
    parameters: dict[str, Any]
    index: int | None = None


class TaskFactory:
    """Makes the tasks of one plan. Nodes with the same options use copies of one task."""

    def __init__(self, actions: Actions) -> None:
        self.actions = actions
        self._made: dict[tuple[str, ...], AnyTask] = {}
        self._checked: dict[tuple[str, ...], list[Wrong]] = {}
        self._circuits: dict[str, CircuitBreaker] = {}

    def expect(self, nodes: Iterable[Node]) -> None:
        """Make the circuits that nodes define, for nodes that only name them. Mistakes are reported later."""
        for node in nodes:
            if isinstance(node.circuit, NodeCircuit):
                with suppress(ConfigurationError):
                    self._circuit(node.circuit)

    def action(self, node: Node) -> Action:
        """The action of a node with a valid type."""
        return cast(Action, self.actions.get(node.type))

    def mistakes(self, node: Node, /) -> list[Wrong]:
        """The mistakes in a node's type, input and options, each with its place in the node."""
        wrong = self.actions.mistakes(node)
        action = self.actions.get(node.type)
        if action is None:
            return wrong
        if says := _error_text(lambda: self._check_circuit(node, action)):
            return [*wrong, (("circuit",), says)]
        key = _key(node, "")
        if key not in self._checked:
            self._checked[key] = self._wrong_task(node)
        return wrong + self._checked[key]

    def _wrong_task(self, node: Node) -> list[Wrong]:
        """The error of Prefect or of the action's options."""
        # Without its circuit: another node may define the circuit that this one names.
        bare = node.model_copy(update={"circuit": None, "effect": None})
        places: dict[Place, Node] = {(): bare, ("effect",): bare.model_copy(update={"effect": node.effect})}
        errors = ((place, _error_text(lambda: self._make(one, node.id))) for place, one in places.items())  # noqa: B023
        return [(place, says) for place, says in errors if says][:1]

    def _check_circuit(self, node: Node, action: Action) -> None:
        circuit = node.circuit
        if circuit is None:
            return
        for name in template_fields(circuit if isinstance(circuit, str) else circuit.name, "circuit"):
            if name not in action.parameters and not action.takes_any:
                raise ConfigurationError(
                    f"{{{name}}} is not an input of {node.type!r}{nearest(name, [*action.parameters])}"
                )

    def task_for(self, node: Node, name: str, cache_key: str | None = None) -> AnyTask:
        """The task of the node's action with the node's options, for the run `name`."""
        key = _key(node, name)
        if key not in self._made:
            self._made[key] = self._make(node, name)
        task = copy(self._made[key])
        task.name = name
        task.task_run_name = _name_of(name)
        if node.cache:
            task.cache_policy = ActionKey(action=node.type, key=cache_key)
        return task

    def job(
        self, node: Node, name: str, view: Rendering, seen: ErrorContext | None, index: int | None = None
    ) -> Job:
        """The job of a node, or of the branch `index`. `seen` is the error that it gets.

        Raises ValueError if a template cannot be filled in.
        """
        action = self.action(node)
        inputs = dict(render(node.input, view))
        if node.map is not None and node.map.item in action.parameters:
            inputs.setdefault(node.map.item, view.names[node.map.item])
        parameters = action.convert(inputs)
        if ERROR in action.parameters:
            parameters.setdefault(ERROR, seen)
        key = node.cache.key if isinstance(node.cache, Cache) else None
        rendered = None if key is None else str(render(key, view, place="cache.key"))
        return Job(node, self.task_for(node, name, rendered), parameters, index)

    def _make(self, node: Node, name: str) -> AnyTask:
        action = self.action(node)
        options: dict[str, Any] = {}
        if node.retry is not None or not action.is_task:
            options["retry"] = node.retry
        if node.timeout is not None:
            options["timeout"] = node.timeout
        if node.deadline is not None:
            options["deadline"] = node.deadline
        if node.circuit is not None:
            options["circuit"] = self._circuit(node.circuit)
        if node.effect is not None:
            options["effect"] = _effect(node.effect, name)
        target: Any = action.target
        if not action.is_task:
            task: AnyTask = ResilientTask(target, **options)
        elif isinstance(target, ResilientTask):
            task = copy(cast("AnyTask", target.with_options(**options) if options else target))
        else:
            task = cast("AnyTask", cast(Any, ResilientTask).wrap(target, **options))
        resilient = cast("ResilientTask[..., Any]", task)
        resilient.action_id = node.type
        if task.cache_policy is DEFAULT:
            task.cache_policy = NodeKey()
        effect = resilient.guard.effect
        if node.cache and effect is not None and effect.external:
            raise ConfigurationError("the ledger replays an external effect: leave `cache` out")
        if node.cache:
            task.persist_result = True
            if isinstance(node.cache, Cache) and node.cache.ttl is not None:
                task.cache_expiration = timedelta(seconds=node.cache.ttl)
        return task

    def _circuit(self, circuit: str | NodeCircuit) -> CircuitBreaker:
        if isinstance(circuit, str):
            # With the policy that the code declared for this name, if it did.
            used = circuit_in_use(circuit, None)
            made = CircuitBreaker.from_policy(circuit, used.policy) if used else CircuitBreaker(circuit)
            return self._circuits.setdefault(circuit, made)
        policy = CircuitPolicy(**circuit.model_dump(exclude={"name"}, exclude_unset=True))
        return self._circuits.setdefault(circuit.name, CircuitBreaker.from_policy(circuit.name, policy))


def items_of(fan_out: FanOut, view: Rendering) -> Sequence[Any]:
    """The items of a fan-out. Raises ValueError if the template cannot be filled in."""
    items = render(fan_out.over, view, place="map.over")
    if not isinstance(items, list | tuple):
        raise ValueError(f"map.over must be a list, not {shortly(items)}")
    return cast("Sequence[Any]", items)


def _effect(written: str | Mapping[str, Any], name: str) -> dict[str, Any]:
    """The option `effect` of a node or branch. The same call in two nodes is two effects."""
    return {"scope": name, **({"kind": written} if isinstance(written, str) else written)}


def _key(node: Node, name: str) -> tuple[str, ...]:
    """Nodes and branches with the same key may share a task."""
    options = repr((node.retry, node.timeout, node.deadline, node.circuit, node.effect, node.cache))
    return node.type, "" if node.effect is None else name, options


def _error_text(make: Callable[[], object]) -> str:
    """The error message of `make`, "" if it raises none."""
    try:
        make()
    except Exception as error:  # noqa: BLE001 - Prefect raises several kinds of errors
        return str(error)
    return ""


def _name_of(name: str) -> Callable[[], str]:
    """A function for the run's name. Prefect calls it when the run begins, and it records the run then."""

    def task_run_name() -> str:
        note_task_run()
        return name

    return task_run_name


def note_task_run() -> None:
    """Add the current task run to the recorded runs of its plan.

    A module-level function, because the context variable cannot be pickled for a worker process.
    """
    runs, context = _recorder.get(), TaskRunContext.get()
    if runs is not None and context is not None:
        runs[context.task_run.id] = context.task_run


class NodeKey(CachePolicy):
    """Prefect's default key, made different for each node. A retried flow run has the same keys.

    The error that a handler gets is left out, because its timestamp differs each time.
    """

    def compute_key(
        self, task_ctx: TaskRunContext, inputs: dict[str, Any], flow_parameters: dict[str, Any], **kwargs: Any
    ) -> str | None:
        if not should_persist_result():
            return None  # without persistence no result can be found
        key = DEFAULT.compute_key(task_ctx, _without_error(inputs), flow_parameters, **kwargs)
        return None if key is None else hash_objects("plan-node", task_ctx.task.name, key)


@dataclass
class ActionKey(CachePolicy):
    """A key shared by all runs of all plans: the action, and its input or the key of the node's `cache`."""

    action: str = ""
    key: str | None = None

    def compute_key(
        self, task_ctx: TaskRunContext, inputs: dict[str, Any], flow_parameters: dict[str, Any], **kwargs: Any
    ) -> str | None:
        key = _without_error(inputs) if self.key is None else self.key
        return hash_objects("plan-action", self.action, key)


def _without_error(inputs: dict[str, Any]) -> dict[str, Any]:
    return {
        name: value
        for name, value in inputs.items()
        if name != ERROR or not isinstance(value, ErrorContext | None)
    }
