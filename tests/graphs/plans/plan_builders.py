"""Plans for tests, in few words, and random ones."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from hypothesis import strategies as st

from prefect_resilience import ErrorCategory, ErrorContext, ErrorInfo
from prefect_resilience.graphs.plans.model import Node, Plan, PlanTransition
from prefect_resilience.graphs.plans.result import NodeResult, PlanResult
from prefect_resilience.graphs.plans.routes import routes
from prefect_resilience.graphs.plans.schedule import Ended, Schedule, ScheduleStep, Skip

NOW = datetime(2025, 11, 29, 12, tzinfo=UTC)
PLANS = Path(__file__).parent / "files"
RULES = ("all_settled", "all_success", "any_success", "always")


def node(node_id: str, *after: str, rule: Any = "all_settled", **fields: Any) -> Node:
    """A node that depends on `after`."""
    return Node(id=node_id, type="step", depends_on=after, trigger_rule=rule, **fields)


def error_at(
    node_id: str, code: str = "503", category: ErrorCategory = ErrorCategory.UNAVAILABLE
) -> ErrorContext:
    info = ErrorInfo(
        category=category,
        kind=category.kind,
        code=code,
        reason=category.reason,
        message=f"{node_id} broke",
        retryable=category.retryable,
    )
    return ErrorContext.from_info(info, timestamp=NOW, node_id=node_id, action_id="step")


def ended(node_id: str, fails: bool = False, to: Iterable[str] = ()) -> Ended:
    return Ended(not fails, error_at(node_id) if fails else None, tuple(to))


@dataclass
class Course:
    """What became of every node, and of which error each knew."""

    status: dict[str, str] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    seen: dict[str, str | None] = field(default_factory=dict)
    started: list[str] = field(default_factory=list)


def play(
    nodes: Iterable[Node],
    ends: Mapping[str, Ended] | None = None,
    pick: Callable[[list[str]], int] = lambda running: 0,
) -> Course:
    """Run a schedule to its end: every node ends as `ends` says (it succeeds where that says nothing)."""
    nodes = tuple(nodes)
    schedule, course, running = Schedule(nodes), Course(), []
    step = schedule.start()
    while True:
        _note(step, schedule, course, running)
        if not running:
            assert set(course.status) == {one.id for one in nodes}
            return course
        name = running.pop(pick(running))
        end = (ends or {}).get(name, Ended(True))
        course.status[name] = "succeeded" if end.produced else "failed"
        step = schedule.settle(name, end)


def result_of(
    plan: Plan, fails: Mapping[str, ErrorContext] | None = None, outputs: Mapping[str, Any] | None = None
) -> PlanResult:
    """What becomes of a plan when these nodes fail and the others give these outputs."""
    nodes = {one.id: one for one in plan.tasks}
    schedule, ends, gave, broke = Schedule(plan.tasks), {}, {}, {}
    steps, at = [schedule.start()], NOW
    for step in steps:
        for skip in step.skipped:
            ends[skip.node] = NodeResult(status="skipped", reason=skip.reason)
        for name in step.ready:
            error = (fails or {}).get(name)
            output = None if error else (outputs or {}).get(name, {})
            handlers = tuple(one.id for one in plan.tasks if name in one.handles_error)
            way = routes(
                nodes[name],
                handlers=handlers,
                output=output,
                error=error,
                outputs=gave,
                errors=broke,
                now=NOW,
            )
            if way.error is None:
                gave[name] = output
            else:
                broke[name] = way.error
            ends[name] = NodeResult(
                status="succeeded" if way.error is None else "failed",
                output=output,
                error=way.error,
                attempts=(nodes[name].retry.attempts if nodes[name].retry and error else 1),
                reason=way.why,
                routed_to=way.to,
                started_at=at,
                duration=0.35 * len(name),
            )
            at += timedelta(seconds=0.35 * len(name))
            steps.append(schedule.settle(name, Ended(way.error is None, way.error, way.to)))
    for name, end in ends.items():
        if end.status == "failed" and schedule.took_over(name):
            ends[name] = end.model_copy(update={"status": "handled"})
    in_order = {one.id: ends[one.id] for one in plan.tasks}
    return PlanResult(succeeded=all(end.status != "failed" for end in ends.values()), nodes=in_order)


def _note(step: ScheduleStep, schedule: Schedule, course: Course, running: list[str]) -> None:
    for skip in step.skipped:
        assert isinstance(skip, Skip)
        assert skip.node not in course.status
        course.status[skip.node] = "skipped"
        course.reasons[skip.node] = skip.reason
    for name in step.ready:
        assert name not in course.started
        course.started.append(name)
        running.append(name)
    for name in (*step.ready, *(skip.node for skip in step.skipped)):
        seen = schedule.error_seen_by(name)
        course.seen[name] = seen and seen.node_id


@dataclass
class Case:
    """A random plan, how each node would end, and in which order."""

    nodes: tuple[Node, ...]
    ends: dict[str, Ended]
    seeds: tuple[int, int]

    def picks(self, which: int) -> Callable[[list[str]], int]:
        source = random.Random(self.seeds[which])
        return lambda running: source.randrange(len(running))


@st.composite
def cases(draw: st.DrawFn, most: int = 9, chance_free: bool = False) -> Case:
    """Plans in which every edge goes from an earlier node to a later one, written in a shuffled order.

    `chance_free`: at most one router a node, and no `any_success`: nothing depends on who ends first.
    """
    names = [f"n{i}" for i in range(draw(st.integers(1, most)))]
    fields: dict[str, dict[str, Any]] = {name: {} for name in names}
    routers: dict[str, list[str]] = {name: [] for name in names}
    rules = [rule for rule in RULES if not (chance_free and rule == "any_success")]
    for i, name in enumerate(names):
        earlier = st.sampled_from(names[:i]) if i else st.nothing()
        fields[name]["depends_on"] = tuple(draw(st.lists(earlier, max_size=3))) if i else ()
        fields[name]["rule"] = draw(st.sampled_from(rules))
        found = draw(st.lists(earlier, max_size=1 if chance_free else 3)) if i else []
        for router in found:
            _route(
                fields,
                name,
                router,
                draw(st.sampled_from(["on_success", "on_failure", "transitions", "handles"])),
            )
            routers[router].append(name)
    ends = {
        name: ended(
            name, draw(st.booleans()), [to for to in dict.fromkeys(routers[name]) if draw(st.booleans())]
        )
        for name in names
    }
    nodes = [
        node(name, *own.pop("depends_on"), rule=own.pop("rule"), **own)
        for name, own in ((name, dict(fields[name])) for name in draw(st.permutations(names)))
    ]
    return Case(tuple(nodes), ends, (draw(st.integers(0, 10**6)), draw(st.integers(0, 10**6))))


def _route(fields: dict[str, dict[str, Any]], name: str, router: str, how: str) -> None:
    if how == "handles":
        fields[name]["handles_error"] = (*fields[name].get("handles_error", ()), router)
    elif how == "transitions":
        ways = fields[router].get("transitions", ())
        fields[router]["transitions"] = (*ways, PlanTransition(to=name, priority=len(ways)))
    else:
        fields[router][how] = (*fields[router].get(how, ()), name)
