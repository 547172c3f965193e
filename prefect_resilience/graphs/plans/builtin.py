"""The action `plan`, which every plan has: it runs another plan as a flow run of its own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from contextvars import ContextVar
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefect_resilience.base.process import setting
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.graphs.plans.reading.data import is_text
from prefect_resilience.graphs.plans.result import PlanResult


@dataclass(frozen=True)
class Nest:
    """The position of a plan among nested plans.

    run: runs a plan inside this one. files: the files of the outer plans, its own last. level: the number of
    outer plans. depth: how many more levels of plans are allowed inside.
    """

    run: Callable[[Any, Mapping[str, Any] | None], PlanResult]
    files: tuple[Path, ...] = ()
    level: int = 0
    depth: int = 5


_nest: ContextVar[Nest | None] = ContextVar("prefect_resilience_plan_nest", default=None)


def current_nest() -> Nest | None:
    return _nest.get()


def nesting(nest: Nest) -> AbstractContextManager[None]:
    """Plans that run in this block are nested in `nest`."""
    return setting(_nest, nest)


def run_subplan(plan: str | dict[str, Any], inputs: dict[str, Any] | None = None) -> dict[str, Any]:
    """Run another plan inside this node, as a flow run of its own.

    Args:
        plan: A file, relative to the file of the outer plan, or the plan itself.
        inputs: The `inputs` of the plan.

    Returns:
        The output of each of its nodes that succeeded, by the node's id.
    """
    nest = _nest.get()
    if nest is None:
        raise ConfigurationError("the action 'plan' works only in a plan: elsewhere call run_plan(...)")
    return nest.run(locate(plan, nest.files), inputs).outputs


def locate(plan: Any, files: tuple[Path, ...]) -> Any:
    """A plan's file as an absolute path; any other value unchanged.

    Raises ConfigurationError for a file that contains itself.
    """
    if not isinstance(plan, str | Path) or (isinstance(plan, str) and is_text(plan)):
        return plan
    path = ((files[-1].parent if files else Path.cwd()) / plan).resolve()
    if path in files:
        chain = " -> ".join(file.name for file in (*files[files.index(path) :], path))
        raise ConfigurationError(f"the plan {path.name!r} contains itself: {chain}")
    return path
