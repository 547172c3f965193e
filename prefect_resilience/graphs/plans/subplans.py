"""The action `plan`: a plan inside a plan, as a flow run of its own."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.graphs.plans.reading.reading import is_text
from prefect_resilience.graphs.plans.result import PlanResult

NAME = "plan"


@dataclass(frozen=True)
class Nest:
    """Where a plan is.

    run: runs a plan inside it. files: those it is inside of, its own last. level: how many plans are around
    it. depth: how many there may still be inside each other in it.
    """

    run: Callable[[Any, Mapping[str, Any] | None], PlanResult]
    files: tuple[Path, ...] = ()
    level: int = 0
    depth: int = 5


_nest: ContextVar[Nest | None] = ContextVar("prefect_resilience_plan_nest", default=None)


def current_nest() -> Nest | None:
    return _nest.get()


@contextmanager
def inside(nest: Nest) -> Generator[None]:
    """Plans that are run in this block, also by the nodes of one, are inside `nest`."""
    token = _nest.set(nest)
    try:
        yield
    finally:
        _nest.reset(token)


def run_subplan(plan: str | dict[str, Any], inputs: dict[str, Any] | None = None) -> dict[str, Any]:
    """Run another plan inside this node, as a flow run of its own.

    Args:
        plan: A file, relative to that of the plan around it, or the plan itself.
        inputs: What the plan calls `inputs`.

    Returns:
        The output of each of its nodes that succeeded, by the node's id.
    """
    nest = _nest.get()
    if nest is None:
        raise ConfigurationError("the action 'plan' runs as a node of a plan: elsewhere call run_plan(...)")
    return nest.run(located(plan, nest.files), inputs).outputs


def located(plan: Any, files: tuple[Path, ...]) -> Any:
    """A plan's file as an absolute path, anything else as it is.

    Raises ConfigurationError for a file that is inside itself.
    """
    if not isinstance(plan, str | Path) or (isinstance(plan, str) and is_text(plan)):
        return plan
    path = ((files[-1].parent if files else Path.cwd()) / plan).resolve()
    if path in files:
        chain = " -> ".join(file.name for file in (*files[files.index(path) :], path))
        raise ConfigurationError(f"the plan {path.name!r} is inside itself: {chain}")
    return path
