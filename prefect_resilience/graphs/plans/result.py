"""What became of a plan and of each of its nodes."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from datetime import datetime
from typing import Any, ClassVar, Literal

from pydantic import BaseModel, ConfigDict, Field, field_serializer

from prefect_resilience.base.plain import plain
from prefect_resilience.errors.context import ErrorContext
from prefect_resilience.graphs.plans.model import Node

NodeStatus = Literal["succeeded", "failed", "handled", "skipped"]


class NodeResult(BaseModel):
    """One node after the run. `handled`: it failed, and another node took over.

    `output` is what the action gave; in JSON, what JSON cannot have is replaced by a short text. `attempts`
    of a fan-out are those of all its branches. `reason` says why it was skipped, or which way it led and
    why. `routed_to` are the nodes that it led to. `duration` is in seconds, all attempts and pauses together.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)

    status: NodeStatus
    output: Any = None
    error: ErrorContext | None = None
    attempts: int = 0
    reason: str = ""
    routed_to: tuple[str, ...] = ()
    started_at: datetime | None = None
    duration: float | None = None
    task_run_id: str | None = None

    @field_serializer("output", when_used="json")
    def _as_json(self, output: Any) -> Any:
        return plain(output)


class PlanResult(BaseModel):
    """The whole run. `succeeded`: no node failed that nobody handled.

    `nodes` are in the plan's order; then come those that were `added` while it ran.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)

    succeeded: bool
    nodes: dict[str, NodeResult] = Field(default_factory=dict[str, NodeResult])
    added: tuple[Node, ...] = ()

    @property
    def outputs(self) -> dict[str, Any]:
        """What each node that succeeded gave, by its id."""
        return {name: node.output for name, node in self.nodes.items() if node.status == "succeeded"}

    @property
    def failed(self) -> list[str]:
        """The nodes that failed and that nobody handled."""
        return [name for name, node in self.nodes.items() if node.status == "failed"]

    def portable(self) -> PlanResult:
        """The same with every output as JSON has it: it can be pickled, whatever the actions gave."""
        nodes = {
            name: node.model_copy(update={"output": plain(node.output)}) for name, node in self.nodes.items()
        }
        return self.model_copy(update={"nodes": nodes})


@dataclass(frozen=True, slots=True)
class Progress:
    """`ended` of the `total` nodes of a plan have ended, `running` of them are at work, `latest` ended last.

    `depth` is 0 for the plan itself and 1 for a plan in one of its nodes. `total` grows when nodes are added.
    """

    ended: int
    total: int
    running: int = 0
    latest: str = ""
    depth: int = 0


Listener = Callable[[Progress], None]

_listener: ContextVar[Listener | None] = ContextVar("prefect_resilience_plan_listener", default=None)


@contextmanager
def listening(listener: Listener) -> Generator[None]:
    """Have `listener` called whenever a node of a plan that is run inside this block begins or ends.

    It is called in the thread that runs the plan, and must be quick; what it raises is dropped.
    """
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def current_listener() -> Listener | None:
    return _listener.get()
