"""Runs a plan inside a Prefect flow run, with one task run for each node.

The flow's own thread makes all decisions. It submits ready nodes to the flow's task runner and waits on a
queue for ended task runs. It does not poll, and tasks never wait for each other.
"""

from __future__ import annotations

import time
from collections import deque
from collections.abc import Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import replace
from datetime import UTC, datetime
from queue import Empty, SimpleQueue
from typing import Any, cast
from uuid import UUID

from prefect.client.schemas.objects import State, TaskRun
from prefect.context import FlowRunContext
from prefect.futures import PrefectFuture
from prefect.logging import get_run_logger
from prefect.states import Completed, Failed

from prefect_resilience.base.outcomes import caller_checks_failures
from prefect_resilience.base.text import plural
from prefect_resilience.errors.context import ErrorContext
from prefect_resilience.graphs.plans.edge import outcomes
from prefect_resilience.graphs.plans.edge.nodes import Job, TaskFactory, items_of, recording_task_runs
from prefect_resilience.graphs.plans.edge.outcomes import Branches, NodeOutcome, outcome_of
from prefect_resilience.graphs.plans.lookups import Rendering
from prefect_resilience.graphs.plans.model import FanOut, Inject, Node, Plan
from prefect_resilience.graphs.plans.reading.reading import read_added
from prefect_resilience.graphs.plans.result import NodeResult, PlanResult, failure_of
from prefect_resilience.graphs.plans.routes import Routing, routes, state_of
from prefect_resilience.graphs.plans.schedule import Ended, Schedule, ScheduleStep, Skip, name_some
from prefect_resilience.graphs.routing.edge.targets import following
from prefect_resilience.graphs.routing.edge.upstream import outside_transactions
from prefect_resilience.tasks.edge.logs import keep_secrets_out_of_logs
from prefect_resilience.telemetry.edge.events import emit

MOST_RUNNING = 100
"""The most task runs of one plan at a time; each has a thread of its own."""
MOST_ARROWS = 100
"""The most dependencies that are shown for one task run."""


class Run:
    """One running plan, inside the current flow run."""

    def __init__(self, plan: Plan, factory: TaskFactory, inputs: Mapping[str, Any]) -> None:
        keep_secrets_out_of_logs()
        context = FlowRunContext.get()
        self.flow_run_id: UUID | None = context.flow_run.id if context and context.flow_run else None
        self.logger: Any = get_run_logger()
        self.plan = plan
        self.factory = factory
        self.inputs = inputs
        self.schedule: Schedule = Schedule(plan.tasks)
        self.results: dict[str, NodeResult] = {}
        self.nodes: dict[str, Node] = {}
        self.handlers: dict[str, list[str]] = {}
        self.errors: dict[str, ErrorContext] = {}
        self.outputs: dict[str, Any] = {}
        self.routed_by: dict[str, list[str]] = {}
        self.task_run_ids: dict[str, UUID] = {}
        self.injected: dict[str, int] = {}
        self.overdue: str | None = None
        self._steps: deque[ScheduleStep] = deque()
        self._jobs: deque[Job] = deque()
        self._branches: dict[str, Branches] = {}
        self._running: dict[UUID, Job] = {}
        self._inbox: SimpleQueue[PrefectFuture[Any]] = SimpleQueue()
        self._task_runs: dict[UUID, TaskRun] = {}
        self._total = len(plan.tasks)
        self._know(plan.tasks)

    def run(self) -> PlanResult:
        """Run the plan to its end. Raises PlanFailed if a node failed and was not handled."""
        seconds = self.plan.bounds.seconds
        deadline = None if seconds is None else time.monotonic() + seconds
        self._steps.append(self.schedule.start())
        with recording_task_runs(self._task_runs), outside_transactions():
            self._advance()
            while self._running:
                future = self._next(deadline)
                if future is None:
                    self._stop()
                    deadline = None
                else:
                    self._take(future)
                self._advance()
        return self._final_result()

    def _know(self, nodes: Sequence[Node]) -> None:
        for node in nodes:
            self.nodes[node.id] = node
            for failing in node.handles_error:
                self.handlers.setdefault(failing, []).append(node.id)

    def _advance(self) -> None:
        """Carry out all decisions, until only waiting is left."""
        while self._steps or (self._jobs and len(self._running) < MOST_RUNNING):
            while self._steps:
                step = self._steps.popleft()
                for skip in step.skipped:
                    self._skip(skip)
                for node_id in step.ready:
                    self._begin(self.nodes[node_id])
            while self._jobs and len(self._running) < MOST_RUNNING:
                self._submit(self._jobs.popleft())

    def _skip(self, skip: Skip) -> None:
        node = self.nodes[skip.node]
        run = self._record(node, Completed(name="Skipped", message=skip.reason))
        self.task_run_ids[node.id] = run.id
        self.results[node.id] = NodeResult(status="skipped", reason=skip.reason, task_run_id=str(run.id))

    def _begin(self, node: Node) -> None:
        failure = self.schedule.error_seen_by(node.id)
        try:
            if node.map is None:
                self._jobs.append(self.factory.job(node, node.id, self._view(failure, {}), failure))
            else:
                self._fan_out(node, node.map, failure)
        except ValueError as error:
            self._settle(node, self._refuse(node, node.id, error))

    def _view(self, failure: ErrorContext | None, names: Mapping[str, Any]) -> Rendering:
        """The values for the templates of a node that gets the error `failure`."""
        return Rendering(self.results, state_of(failure, self.errors), self.inputs, names)

    def _fan_out(self, node: Node, fan_out: FanOut, failure: ErrorContext | None) -> None:
        items = items_of(fan_out, self._view(failure, {}))
        most = self.plan.bounds.fan_out
        if len(items) > most:
            raise ValueError(
                f"map.over: {len(items):,} items are more than the {most:,} that bounds.fan_out allows"
            )
        self._count(len(items), "branches")
        branches = self._branches[node.id] = Branches(node, items, _now())
        for index, item in enumerate(items):
            name = f"{node.id}[{index}]"
            try:
                view = self._view(failure, {fan_out.item: item, "index": index})
                self._jobs.append(self.factory.job(node, name, view, failure, index))
            except ValueError as error:
                branches.outcomes[index] = self._refuse(node, name, error)
        self._join(branches)

    def _submit(self, job: Job) -> None:
        node = job.node
        arrows = following(self._upstream(node))
        handled = bool(node.on_failure or self.handlers.get(node.id))
        try:
            with caller_checks_failures() if handled else nullcontext():
                future: PrefectFuture[Any] = cast(Any, job.task).submit(
                    **job.parameters, wait_for=arrows or None
                )
        except Exception as error:  # noqa: BLE001 - task runners raise many kinds of errors
            self._end(job, self._refuse(node, job.task.name, error))
            return
        self._running[future.task_run_id] = job
        future.add_done_callback(self._inbox.put)

    def _upstream(self, node: Node) -> list[UUID]:
        """The task runs of the nodes before this one, for the arrows in the UI."""
        names = [*node.depends_on, *self.routed_by.get(node.id, ())][:MOST_ARROWS]
        return [self.task_run_ids[name] for name in names if name in self.task_run_ids]

    def _record(self, node: Node, state: State, **known: Any) -> TaskRun:
        return outcomes.record_run(node, state, self._upstream(node), self.flow_run_id, **known)

    def _next(self, deadline: float | None) -> PrefectFuture[Any] | None:
        """The next task run that ends; None if the plan times out first."""
        if deadline is None:
            return self._inbox.get()
        seconds = deadline - time.monotonic()
        with suppress(Empty):
            return self._inbox.get(timeout=seconds) if seconds > 0 else None
        return None

    def _take(self, future: PrefectFuture[Any]) -> None:
        job = self._running.pop(future.task_run_id)
        task_run = self._task_runs.pop(future.task_run_id, None)
        self._end(job, outcome_of(future, job.task.name, task_run, _now()))

    def _end(self, job: Job, outcome: NodeOutcome) -> None:
        if job.index is None:
            self._settle(job.node, outcome)
            return
        branches = self._branches[job.node.id]
        branches.outcomes[job.index] = outcome
        self._join(branches)

    def _join(self, branches: Branches) -> None:
        """Settle a node once all its branches have ended. It gets a task run of its own, for the UI."""
        if len(branches.outcomes) < len(branches.items):
            return
        node = branches.node
        del self._branches[node.id]
        outcome = branches.outcome(_now())
        failed = outcome.error
        message = failed.message if failed else f"{len(branches.items)} branches"
        state = Failed(message=message) if failed else Completed(message=message)
        run = self._record(node, state, began=branches.began)
        self._settle(node, replace(outcome, task_run_id=run.id, task_run=run))

    def _refuse(self, node: Node, name: str, error: Exception) -> NodeOutcome:
        """The outcome of a node or branch that cannot begin. It gets a failed task run."""
        run = self._record(node, Failed(message=str(error)), name=name)
        return replace(outcomes.refusal_outcome(error, name, _now()), task_run_id=run.id)

    def _settle(self, node: Node, outcome: NodeOutcome) -> None:
        """A node has ended: choose its routes and find the nodes that may run now."""
        if outcome.error is None and isinstance(outcome.value, Inject):
            outcome = self._inject(node, outcome.value, outcome)
        routing = routes(
            node,
            handlers=tuple(self.handlers.get(node.id, ())),
            output=outcome.value,
            error=outcome.error,
            outputs=self.outputs,
            errors=self.errors,
            inputs=self.inputs,
            now=_now(),
        )
        if routing.error is not None and outcome.error is None and outcome.task_run is not None:
            outcomes.fail_after_all(outcome.task_run, routing.error.message)
        self._keep(node, outcome, routing)
        if routing.to or (routing.why and not routing.error):
            self._tell_branching(node, routing)
        ended = Ended(routing.error is None, routing.error, routing.to)
        self._steps.append(self.schedule.settle(node.id, ended))

    def _keep(self, node: Node, outcome: NodeOutcome, routing: Routing) -> None:
        error = routing.error
        run_id = outcome.task_run_id
        self.results[node.id] = NodeResult(
            status="succeeded" if error is None else "failed",
            output=outcome.value if error is None else None,
            error=error,
            attempts=outcome.attempts,
            reason=routing.why,
            routed_to=routing.to,
            started_at=outcome.started_at,
            duration=outcome.duration,
            task_run_id=None if run_id is None else str(run_id),
        )
        if run_id is not None:
            self.task_run_ids[node.id] = run_id
        if error is None:
            self.outputs[node.id] = outcome.value
        else:
            self.errors[node.id] = error
        for name in routing.to:
            self.routed_by.setdefault(name, []).append(node.id)

    def _inject(self, node: Node, inject: Inject, outcome: NodeOutcome) -> NodeOutcome:
        """Add the nodes that an action returned. The node fails if they cannot be added."""
        level = self.injected.get(node.id, 0) + 1
        try:
            added = self._read_added(node, inject, level)
            self._steps.append(self.schedule.add(added, by=node.id))
        except ValueError as error:
            if outcome.task_run is not None:
                outcomes.fail_after_all(outcome.task_run, str(error))
            return replace(outcome, value=None, error=outcomes.refusal_outcome(error, node.id, _now()).error)
        self._know(added)
        self.injected.update((new.id, level) for new in added)
        names = name_some([new.id for new in added[:10]], len(added))
        self.logger.info("Node %r added %d nodes: %s", node.id, len(added), names)
        return replace(outcome, value=inject.output)

    def _read_added(self, node: Node, inject: Inject, level: int) -> list[Node]:
        """The nodes of an `Inject`. Raises ValueError if they are invalid or too many."""
        bounds = self.plan.bounds
        if level > bounds.depth:
            raise ValueError(
                f"added nodes that add nodes are nested {level} deep; bounds.depth allows {bounds.depth}"
            )
        self._count(len(inject.nodes), "nodes")
        self.factory.expect(new for new in inject.nodes if isinstance(new, Node))
        return read_added(
            inject, by=node.id, nodes=self.nodes, ended=self.results, plan=self.plan, actions=self.factory
        )

    def _count(self, more: int, what: str) -> None:
        """Count new nodes or branches. Raises ValueError if the plan's bounds are exceeded."""
        most = self.plan.bounds.nodes
        if self._total + more > most:
            raise ValueError(
                f"{more:,} more {what} with {self._total:,} nodes and branches are more than the {most:,} "
                "that bounds.nodes allows"
            )
        self._total += more

    def _stop(self) -> None:
        """The plan has timed out: start nothing more, and wait for running tasks."""
        reason = f"the plan timed out after {self.plan.bounds.seconds:g} s"
        self.overdue = reason
        self.logger.error("No more nodes will start: %s", reason)
        self._steps.append(self.schedule.stop(reason))
        waiting, self._jobs = self._jobs, deque()
        for job in waiting:
            if job.index is not None:
                self._end(job, outcomes.not_begun(reason, job.task.name, _now()))
            else:
                self._skip(Skip(job.node.id, reason))
                self._steps.append(self.schedule.settle(job.node.id, Ended(False)))

    def _final_result(self) -> PlanResult:
        results = {name: self._final(name) for name in self.nodes}
        good = self.overdue is None and all(result.status != "failed" for result in results.values())
        result = PlanResult(
            succeeded=good, nodes=results, added=tuple(map(self.nodes.__getitem__, self.injected))
        )
        if good:
            return result
        overdue = None
        if self.overdue is not None:
            unstarted = sum(node.reason == self.overdue for node in results.values())
            overdue = f"{self.overdue}, and {plural(unstarted, 'node')} did not start"
        raise failure_of(
            result,
            now=_now(),
            first=next((name for name in self.errors if results[name].status == "failed"), None),
            flow_run_id=None if self.flow_run_id is None else str(self.flow_run_id),
            overdue=overdue,
        )

    def _final(self, name: str) -> NodeResult:
        """The final result: a failed node is handled if a node that it routed to was not skipped."""
        result = self.results[name]
        if result.status == "failed" and self.schedule.took_over(name):
            return result.model_copy(update={"status": "handled"})
        return result

    def _tell_branching(self, node: Node, routing: Routing) -> None:
        way = ", ".join(routing.to) or "no node"
        self.logger.info("Node %r routes to %s: %s", node.id, way, routing.why)
        payload = {
            "node": node.id,
            "to": list(routing.to),
            "why": routing.why,
            "failed": routing.error is not None,
            "plan": self.plan.name,
        }
        emit("plan.branched", "plan-node", node.id, payload)


def _now() -> datetime:
    return datetime.now(UTC)
