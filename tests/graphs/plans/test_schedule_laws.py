"""The schedule against its rules, written down a second time in the plainest way.

Any plan, any outcome, any order of endings.
"""

from collections.abc import Mapping, Sequence

import pytest
from hypothesis import given, settings

from prefect_resilience.graphs.plans.model import Node
from prefect_resilience.graphs.plans.schedule import Ended
from tests.graphs.plans.plan_builders import Case, cases, play

pytestmark = [pytest.mark.no_cover, pytest.mark.slow]


class Reference:
    """What the rules say of a plan, node after node in an order in which every edge goes forward."""

    def __init__(self, nodes: Sequence[Node], ends: Mapping[str, Ended]) -> None:
        self.nodes = {node.id: node for node in sorted(nodes, key=lambda node: int(node.id[1:]))}
        self.ends = ends
        self.status: dict[str, str] = {}
        self.ways: dict[str, list[str]] = {}
        self.visible: dict[str, list[str]] = {}
        self.before: dict[str, set[str]] = {}
        for name in self.nodes:
            self.status[name] = self._status(name)
            self.before[name] = {earlier for way in self.ways[name] for earlier in (way, *self.before[way])}
            self.visible[name] = self._visible(name)
            if self.status[name] == "runs":
                self.status[name] = "succeeded" if ends[name].produced else "failed"

    def routers(self, name: str) -> list[str]:
        return [
            other
            for other, node in self.nodes.items()
            if name in (*node.on_success, *node.on_failure, *(way.to for way in node.transitions))
            or other in self.nodes[name].handles_error
        ]

    def _status(self, name: str) -> str:
        node, routers = self.nodes[name], self.routers(name)
        led = [r for r in routers if self.status[r] != "skipped" and name in self.ends[r].routed_to]
        deps = list(dict.fromkeys(node.depends_on))
        met = [d for d in deps if self.status[d] == "succeeded" or d in led]
        if routers and not led:
            self.ways[name] = routers
            return "skipped"
        runs = {
            "always": True,
            "all_success": len(met) == len(deps),
            "any_success": bool(met) or not deps,
            "all_settled": bool(met) or not deps,
        }[node.trigger_rule]
        self.ways[name] = led if node.trigger_rule == "any_success" and met else led + deps
        return "runs" if runs else "skipped"

    def _visible(self, name: str) -> list[str]:
        told: list[str] = []
        for way in self.ways[name]:
            if self.status[way] == "failed":
                told.append(way)
            elif self.status[way] == "skipped":
                told += self.visible[way]
        on_the_way = self.before[name]
        healed = {
            p for p in on_the_way for q in on_the_way if self.status[q] == "succeeded" and p in self.before[q]
        }
        return [p for p in told if p not in healed]


@given(cases())
@settings(max_examples=250, deadline=None)
def test_every_node_settles_once_as_the_rules_say_whatever_ends_first(case: Case) -> None:
    one = play(case.nodes, case.ends, case.picks(0))
    other = play(case.nodes, case.ends, case.picks(1))
    assert one.status == Reference(case.nodes, case.ends).status
    assert (other.status, other.reasons) == (one.status, one.reasons)
    assert all(one.reasons.values())


@given(cases(most=12, chance_free=True))
@settings(max_examples=250, deadline=None)
def test_the_error_that_a_node_sees_is_the_first_that_nothing_has_healed(case: Case) -> None:
    course = play(case.nodes, case.ends, case.picks(0))
    reference = Reference(case.nodes, case.ends)
    assert course.status == reference.status
    assert course.seen == {name: next(iter(seen), None) for name, seen in reference.visible.items()}
