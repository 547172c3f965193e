"""A plan that was run, and what the Prefect API knows of it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from prefect.client.orchestration import get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.client.schemas.objects import State, TaskRun

from prefect_resilience.errors.context import ErrorContext, error_context
from prefect_resilience.graphs.plans.result import PlanResult
from prefect_resilience.operations import run_plan
from tests.prefect_runs import until


@dataclass
class Ran:
    """The final state of a run of a plan, its result even if it failed, and its task runs by name."""

    state: State
    result: PlanResult

    @property
    def flow_run_id(self) -> Any:
        return self.state.state_details.flow_run_id

    @property
    def error(self) -> ErrorContext | None:
        return error_context(self.state)

    @property
    def failure(self) -> ErrorContext:
        """The error of a run that failed."""
        assert self.error is not None
        return self.error

    def error_of(self, name: str) -> ErrorContext:
        """The error of a node that failed."""
        error = self.result.nodes[name].error
        assert error is not None
        return error

    def statuses(self) -> dict[str, str]:
        return {name: str(node.status) for name, node in self.result.nodes.items()}

    def task_runs(self) -> dict[str, TaskRun]:
        """Every task run of the flow run, waited for until all of them have ended there too."""

        def ended() -> list[TaskRun] | None:
            chosen = FlowRunFilter(id=FlowRunFilterId(any_=[self.flow_run_id]))
            with get_client(sync_client=True) as client:
                found = client.read_task_runs(flow_run_filter=chosen)
            known = {run.name for run in found}
            ready = all(run.state and run.state.is_final() for run in found)
            return found if ready and known >= set(self.result.nodes) else None

        return {run.name: run for run in until(ended)}

    def states(self, name: str) -> list[str]:
        """The names of the states that a node's task run went through, in their order."""
        run = self.task_runs()[name]
        with get_client(sync_client=True) as client:
            answer = client.request("GET", "/task_run_states/", params={"task_run_id": str(run.id)})
        found = sorted((State.model_validate(state) for state in answer.json()), key=lambda s: s.timestamp)
        return [str(state.name) for state in found]


def echo(value: Any = None, error: ErrorContext | None = None) -> Any:
    return value


def fail(text: str = "down", error: ErrorContext | None = None) -> None:
    raise ConnectionError(text)


BASIC: dict[str, Callable[..., Any]] = {"echo": echo, "fail": fail}


def node(name: str, kind: str = "echo", **fields: Any) -> dict[str, Any]:
    return {"id": name, "type": kind, **fields}


def run(*nodes: dict[str, Any], actions: dict[str, Any] | None = None, **plan: Any) -> Ran:
    return ran({"tasks": list(nodes), **plan}, actions={**BASIC, **(actions or {})})


def ran(plan: Any, **options: Any) -> Ran:
    """Run a plan to its end, whether it succeeds or fails."""
    state: State = run_plan(plan, **options, return_state=True)
    outcome = state.result(raise_on_failure=False)
    result = outcome if isinstance(outcome, PlanResult) else outcome.result
    return Ran(state, result)
