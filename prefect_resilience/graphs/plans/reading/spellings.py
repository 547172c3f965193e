"""Older and shorter spellings of a plan's data, translated into the fields of the model."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from prefect_resilience.graphs.plans.reading.mistakes import Mistake, Names, quote

SOURCE = "from_node_id"
_OTHERS = frozenset({"implementation", "retries", "transitions"})
_BEFORE_POLICIES = {"backoff": "constant", "initial_delay_ms": 100}
"""The delay of the older field `retries`."""


class Spellings:
    """A plan's data with older and shorter spellings translated: `data`, `mistakes`, and original places.

    - `implementation` of a node is its `input`;
    - `retries` of a node is a `retry_policy` with 0.1 s before each retry;
    - `transitions` of the plan, each with its `from_node_id`, are transitions of those nodes;
    - `from_node_id` in a node's own transition names that node.
    """

    def __init__(self, data: Mapping[Any, Any]) -> None:
        self.mistakes: list[Mistake] = []
        self._places: dict[str, str] = {}
        self.data: dict[Any, Any] = dict(data)
        tasks: Any = data.get("tasks")
        if isinstance(tasks, list | tuple):
            nodes: list[Any] = [*cast("list[Any]", tasks)]
            for number, node in enumerate(nodes):
                if isinstance(node, dict) and not _OTHERS.isdisjoint(cast("dict[Any, Any]", node)):
                    nodes[number] = self._node(dict(cast("dict[Any, Any]", node)), f"tasks[{number}]")
            self._move(self.data.pop("transitions", None), nodes)
            self.data["tasks"] = nodes

    def place(self, place: str) -> str:
        """The original place of the part that is at `place` now."""
        for start, original in self._places.items():
            if place == start or place.startswith((f"{start}.", f"{start}[")):
                return original + place[len(start) :]
        return place

    def _refuse(self, place: str, says: str) -> None:
        self.mistakes.append(Mistake(place, says))

    def _node(self, node: dict[Any, Any], place: str) -> dict[Any, Any]:
        if "implementation" in node:
            written = node.pop("implementation")
            if "input" in node:
                self._refuse(f"{place}.implementation", "means the same as input: write only one of them")
            else:
                node["input"] = written
                self._places[f"{place}.input"] = f"{place}.implementation"
        if "retries" in node:
            retries = node.pop("retries")
            execution: Any = node.get("execution")
            inner: Any = cast("Any", execution) if isinstance(execution, dict) else {}
            if node.get("retry_policy", inner.get("retry_policy")) is not None:
                self._refuse(f"{place}.retries", "cannot be combined with a retry_policy: leave it out")
            else:
                node["retry_policy"] = {"max_retries": retries, **_BEFORE_POLICIES}
                self._places[f"{place}.retry_policy.max_retries"] = f"{place}.retries"
        if isinstance(node.get("transitions"), list):
            ways = enumerate(node["transitions"])
            node["transitions"] = [
                self._own(way, node.get("id"), f"{place}.transitions[{number}]") for number, way in ways
            ]
        return node

    def _own(self, way: Any, node_id: Any, place: str) -> Any:
        """A transition of a node without the name of this node."""
        if not isinstance(way, Mapping) or SOURCE not in way:
            return cast("Any", way)
        rest = dict(cast("Mapping[Any, Any]", way))
        source = rest.pop(SOURCE)
        if source != node_id:
            says = f"{quote(source)} is another node: write the transition there, or leave this out"
            self._refuse(f"{place}.{SOURCE}", says)
        return rest

    def _move(self, ways: Any, nodes: list[Any]) -> None:
        """Move each transition of the plan into its source node."""
        if not isinstance(ways, list | tuple):
            if ways is not None:
                self._refuse("transitions", f"write a list, not {quote(ways)}")
            return
        ids: list[Any] = [
            cast("Any", node).get("id") if isinstance(node, dict) else getattr(node, "id", None)
            for node in nodes
        ]
        numbers = {name: number for number, name in enumerate(ids) if isinstance(name, str)}
        for number, way in enumerate(cast("list[Any]", ways)):
            place = f"transitions[{number}]"
            if not isinstance(way, Mapping):
                self._refuse(place, f"write an object, not {quote(way)}")
                continue
            rest = dict(cast("Mapping[Any, Any]", way))
            source = rest.pop(SOURCE, None)
            if source is None:
                self._refuse(f"{place}.{SOURCE}", "is missing: the id of the node that the transition leaves")
            elif source not in numbers:
                near = Names(numbers).suggestion(source)
                self._refuse(f"{place}.{SOURCE}", f"unknown node {quote(source)}{near}")
            elif not isinstance(nodes[numbers[source]], dict):
                self._refuse(f"{place}.{SOURCE}", "write this transition in the node's own transitions")
            else:
                at = numbers[source]
                own = nodes[at].get("transitions", [])
                if isinstance(own, list | tuple):
                    self._places[f"tasks[{at}].transitions[{len(cast('list[Any]', own))}]"] = place
                    nodes[at] = {**nodes[at], "transitions": [*own, rest]}
