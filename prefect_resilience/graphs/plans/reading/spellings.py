"""Older and other spellings of a plan's fields, put in the words that `model.py` reads. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, cast

from prefect_resilience.graphs.plans.model import QUORUM
from prefect_resilience.graphs.plans.reading.data import Repeated
from prefect_resilience.graphs.plans.reading.mistakes import Mistake, quoted

SOURCE = "from_node_id"
_OTHERS = frozenset({"implementation", "quorum", "retries", "transitions"})
_BEFORE_POLICIES = {"backoff": "constant", "initial_delay_ms": 100}
"""How `retries` waited before there were retry policies."""
MOST_ASKED = 100
_QUORUM_FORM = '{"of": ["first", "second", "third"], "need": 2}'


class Spellings:
    """A plan's data in our words: `data`, what cannot be put so, and where everything was written.

    - `implementation` of a node is its `input`;
    - `quorum` of a node, `{"of": [...], "need": 2, "key": "label"}`, is its type, which asks these actions
      with its `input`; `{"times": 3}` in place of `of` asks the node's own type as often;
    - `retries` of a node is a `retry_policy` with 0.1 s before each retry;
    - `transitions` of the plan, each with its `from_node_id`, are those of their nodes;
    - `from_node_id` in a node's own transition names that node.
    """

    def __init__(self, data: Mapping[Any, Any]) -> None:
        self.mistakes: list[Mistake] = []
        self._written: dict[str, str] = {}
        self.data: Mapping[Any, Any] = data
        tasks: Any = data.get("tasks")
        if not isinstance(tasks, list | tuple):
            return
        nodes = [*cast("list[Any]", tasks)]
        for n, node in enumerate(nodes):
            if isinstance(node, dict) and not _OTHERS.isdisjoint(cast("dict[Any, Any]", node)):
                nodes[n] = self._node(cast("dict[Any, Any]", node), f"tasks[{n}]")
        ways: Any = data.get("transitions")
        if ways is not None:
            self._spread(ways, nodes)
        self.data = _with(data, {"tasks": nodes}, "transitions")

    def place(self, place: str) -> str:
        """Where the part was written that now stands at `place`."""
        for here, there in self._written.items():
            if place == here or place.startswith((f"{here}.", f"{here}[")):
                return there + place[len(here) :]
        return place

    def _wrong(self, place: str, says: str) -> None:
        self.mistakes.append(Mistake(place, says))

    def _node(self, written: Mapping[Any, Any], place: str) -> Mapping[Any, Any]:
        if "implementation" in written:
            if "input" in written:
                self._wrong(f"{place}.implementation", "means the same as input: write the parameters in one")
            else:
                self._written[f"{place}.input"] = f"{place}.implementation"
                written = _with(written, {"input": written["implementation"]})
        if "retries" in written:
            written = self._retried(written, place)
        if "quorum" in written:
            written = self._quorum(written, place)
        ways: Any = written.get("transitions")
        if isinstance(ways, list | tuple):
            inside = f"{place}.transitions"
            own = [
                self._own(way, written.get("id"), f"{inside}[{n}]")
                for n, way in enumerate(cast("list[Any]", ways))
            ]
            written = _with(written, {"transitions": own})
        return _with(written, {}, "implementation", "quorum", "retries")

    def _quorum(self, node: Mapping[Any, Any], place: str) -> Mapping[Any, Any]:
        asked: Any = node["quorum"]
        here = f"{place}.quorum"
        own = node.get("type", node.get("kind"))
        if own == QUORUM:
            own = None
        made: dict[str, Any] = {"type": QUORUM, "input": {"of": []}}
        if not isinstance(asked, dict) or not asked or not asked.keys() <= {"of", "times", "need", "key"}:
            self._wrong(here, f"write an object such as {_QUORUM_FORM}, not {quoted(node['quorum'])}")
            return _with(node, made, "kind")
        words = cast("dict[str, Any]", asked)
        times: Any = words.get("times")
        if ("of" in words) == ("times" in words) or ("of" in words) == (own is not None):
            self._wrong(here, "write the actions to ask in of, without a type, or a type and how many times")
        elif "times" in words and (type(times) is not int or not 1 <= times <= MOST_ASKED):
            says = f"write how often to ask {quoted(own)}, from 1 to {MOST_ASKED}, not {quoted(times)}"
            self._wrong(f"{here}.times", says)
        else:
            of = words["of"] if "of" in words else [own] * times
            made["input"] = {**words, "of": of, "input": node.get("input", {})}
            made["input"].pop("times", None)
            self._written |= {f"{place}.input.{name}": f"{here}.{name}" for name in ("of", "need", "key")}
            self._written[f"{place}.input.input"] = f"{place}.input"
        return _with(node, made, "kind")

    def _retried(self, node: Mapping[Any, Any], place: str) -> Mapping[Any, Any]:
        execution: Any = node.get("execution")
        inside: Any = cast("Mapping[Any, Any]", execution) if isinstance(execution, Mapping) else {}
        retries = node["retries"]
        if node.get("retry_policy") is not None or inside.get("retry_policy") is not None:
            self._wrong(f"{place}.retries", "stands beside a retry_policy, which says it all: leave it out")
        elif isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:
            says = f"write how often to try again, a whole number from 0, not {quoted(retries)}"
            self._wrong(f"{place}.retries", says)
        else:
            self._written[f"{place}.retry_policy"] = f"{place}.retries"
            return _with(node, {"retry_policy": {"max_retries": retries, **_BEFORE_POLICIES}})
        return node

    def _own(self, way: Any, node_id: Any, place: str) -> Any:
        if not isinstance(way, Mapping) or SOURCE not in way:
            return cast("Any", way)
        written = cast("Mapping[Any, Any]", way)
        if written[SOURCE] != node_id:
            says = f"{quoted(written[SOURCE])} is another node: write the transition there, or leave this out"
            self._wrong(f"{place}.{SOURCE}", says)
        return _with(written, {}, SOURCE)

    def _spread(self, ways: Any, nodes: list[Any]) -> None:
        """Give each transition of the plan to the node that it leads away from."""
        if not isinstance(ways, list | tuple):
            return self._wrong("transitions", f"write a list, not {quoted(ways)}")
        places = {name: n for n, node in enumerate(nodes) if isinstance(name := _id_of(node), str)}
        for number, way in enumerate(cast("list[Any]", ways)):
            place = f"transitions[{number}]"
            if not isinstance(way, Mapping):
                self._wrong(place, f"write an object, not {quoted(way)}")
                continue
            written = cast("Mapping[Any, Any]", way)
            source = written.get(SOURCE)
            if SOURCE not in written:
                self._wrong(f"{place}.{SOURCE}", "is missing: the id of the node that it leads away from")
            elif not isinstance(source, str) or source not in places:
                self._wrong(f"{place}.{SOURCE}", f"there is no node {quoted(source)}")
            elif not isinstance(nodes[places[source]], Mapping):
                self._wrong(f"{place}.{SOURCE}", "write this transition in the node's own transitions")
            else:
                n = places[source]
                own: Any = nodes[n].get("transitions", ())
                if isinstance(own, list | tuple):
                    moved = [*cast("list[Any]", own), _with(written, {}, SOURCE)]
                    self._written[f"tasks[{n}].transitions[{len(moved) - 1}]"] = place
                    nodes[n] = _with(nodes[n], {"transitions": moved})
        return None


def _id_of(node: Any) -> Any:
    """What a node is called, be it read already or not."""
    return (
        cast("Mapping[Any, Any]", node).get("id") if isinstance(node, Mapping) else getattr(node, "id", None)
    )


def _with(data: Mapping[Any, Any], more: Mapping[str, Any], *without: str) -> Mapping[Any, Any]:
    """The data with some fields more and some less; keys that were written twice are still known."""
    if not more and not any(name in data for name in without):
        return data
    made = {key: value for key, value in {**data, **more}.items() if key not in without}
    if not isinstance(data, Repeated):
        return made
    repeated = Repeated(made)
    repeated.keys_repeated = data.keys_repeated
    return repeated
