"""Every mistake of a plan, each with its place: first of single nodes, then of all nodes together."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from typing import Any, cast

from pydantic import ValidationError

from prefect_resilience.graphs.plans.model import QUORUM, Asked, Bounds, CheckedActions, Node, Plan, PlanHead
from prefect_resilience.graphs.plans.reading.data import WrittenTwice, wrong_data
from prefect_resilience.graphs.plans.reading.meaning import UNREAD, Entry, Meaning, unknown_inputs
from prefect_resilience.graphs.plans.reading.mistakes import (
    MOST_MISTAKES,
    Mistake,
    Place,
    PlanError,
    mistakes_of,
    place_text,
    quoted,
)

SOURCE = "from_node_id"
_OTHERS = frozenset({"implementation", "quorum", "retries", "transitions"})
_BEFORE_POLICIES = {"backoff": "constant", "initial_delay_ms": 100}
"""The delay of the older field `retries`."""
MOST_ASKED = 100
_QUORUM_FORM = '{"of": ["first", "second", "third"], "need": 2}'


class Spellings:
    """A plan's data with older and shorter spellings translated: `data`, `mistakes`, and original places.

    - `implementation` of a node is its `input`;
    - `quorum` of a node, `{"of": [...], "need": 2, "key": "label"}`, makes it a node of type `quorum`, which
      calls these actions with its `input`; `{"times": 3}` in place of `of` calls the node's own type 3 times;
    - `retries` of a node is a `retry_policy` with 0.1 s before each retry;
    - `transitions` of the plan, each with its `from_node_id`, are transitions of those nodes;
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
        """The original place of the part that is at `place` now."""
        for here, there in self._written.items():
            if place == here or place.startswith((f"{here}.", f"{here}[")):
                return there + place[len(here) :]
        return place

    def _wrong(self, place: str, says: str) -> None:
        self.mistakes.append(Mistake(place, says))

    def _node(self, written: Mapping[Any, Any], place: str) -> Mapping[Any, Any]:
        if "implementation" in written:
            if "input" in written:
                self._wrong(f"{place}.implementation", "means the same as input: write only one of them")
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
            self._wrong(here, "write 'of' with the actions to call, or a type and 'times', but not both")
        elif "times" in words and (type(times) is not int or not 1 <= times <= MOST_ASKED):
            says = f"write how many times to call {quoted(own)}, from 1 to {MOST_ASKED}, not {quoted(times)}"
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
            self._wrong(f"{place}.retries", "cannot be combined with a retry_policy: leave it out")
        elif isinstance(retries, bool) or not isinstance(retries, int) or retries < 0:
            says = f"write the number of retries, a whole number of at least 0, not {quoted(retries)}"
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
        """Move each transition of the plan into its source node."""
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
                self._wrong(f"{place}.{SOURCE}", "is missing: the id of the node that the transition leaves")
            elif not isinstance(source, str) or source not in places:
                self._wrong(f"{place}.{SOURCE}", f"unknown node {quoted(source)}")
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
    """The id of a node, as data or as a `Node`."""
    return (
        cast("Mapping[Any, Any]", node).get("id") if isinstance(node, Mapping) else getattr(node, "id", None)
    )


def _with(data: Mapping[Any, Any], more: Mapping[str, Any], *without: str) -> Mapping[Any, Any]:
    """The data with fields added and removed. Duplicate keys stay marked."""
    if not more and not any(name in data for name in without):
        return data
    return {key: value for key, value in {**data, **more}.items() if key not in without}


ROUTES = ("depends_on", "on_success", "on_failure", "handles_error")


def read_fields(data: Any, asked: Asked) -> dict[str, Any]:
    """The values of a plan's fields, with its nodes read. They are valid only if `asked` has no mistakes."""
    found = Found(asked.mistakes)
    if not isinstance(data, Mapping):
        found.add("", f"a plan is an object with its nodes in 'tasks', not {quoted(data)}")
        return {}
    spelled = Spellings(cast("Mapping[Any, Any]", data))
    found.place = spelled.place
    found.extend(spelled.mistakes)
    written = spelled.data
    values: dict[str, Any] = {str(key): part for key, part in written.items() if key != "tasks"}
    found.extend(_wrong_fields(values))
    bounds = values.get("bounds")
    bounds = bounds if isinstance(bounds, Bounds) else Bounds()
    tasks: Any = written.get("tasks")
    wrong = _wrong_list(written, tasks, bounds)
    if wrong:
        found.add("tasks", wrong)
    else:
        given: Any = values.get("inputs")
        declared: dict[str, Any] = (
            dict(cast("Mapping[str, Any]", given)) if isinstance(given, Mapping) else {}
        )
        values["tasks"] = _read_nodes(tasks, bounds, declared, asked, found)
    return values


def _wrong_list(written: Mapping[Any, Any], tasks: Any, bounds: Bounds) -> str:
    if "tasks" not in written:
        return "is missing: the list of the plan's nodes"
    if isinstance(tasks, WrittenTwice):
        return str(tasks)
    if not isinstance(tasks, list | tuple):
        return f"write a list of nodes, not {quoted(tasks)}"
    count = len(cast("list[Any]", tasks))
    if count > bounds.nodes:
        return f"{count:,} nodes are more than the {bounds.nodes:,} that bounds.nodes allows"
    return "" if count else "is empty: write at least one node"


def built(data: Any, asked: Asked, source: str = "the plan") -> Plan:
    """The plan of this data. Raises `PlanError` with every mistake."""
    try:
        return Plan.model_validate(data, context=asked)
    except ValidationError:
        raise PlanError(asked.mistakes, source) from None


def mistakes_of_run(
    plan: Plan, actions: CheckedActions | None, inputs: Mapping[str, Any] | None
) -> list[Mistake]:
    """The mistakes that keep a valid plan from running with these actions and inputs."""
    found = Found([])
    entries = [Entry(node.id, f"tasks[{n}]", node, True) for n, node in enumerate(plan.tasks)]
    for _, mistake in _of_run(entries, plan.inputs, Asked(actions, inputs)):
        found.extend([mistake])
    return found.mistakes


class Found:
    """Mistakes, up to `MOST_MISTAKES`."""

    def __init__(self, mistakes: list[Mistake]) -> None:
        self.mistakes = mistakes
        self.place: Callable[[str], str] = str

    @property
    def full(self) -> bool:
        return len(self.mistakes) >= MOST_MISTAKES

    def add(self, place: str, message: str) -> None:
        self.extend([Mistake(place, message)])

    def extend(self, more: Iterable[Mistake]) -> None:
        for mistake in more:
            if self.full:
                return
            self.mistakes.append(Mistake(self.place(mistake.place), mistake.message))


def _wrong_fields(values: dict[str, Any]) -> Iterator[Mistake]:
    """The mistakes of the plan's own fields. Valid fields are replaced in `values` by their parsed form."""
    unreadable: set[str] = set()
    for name, value in values.items():
        for place, says in wrong_data(value, 1) if not isinstance(value, Bounds) else ():
            unreadable.add(name)
            yield Mistake(place_text((name, *place)), says)
    for name in unreadable:
        del values[name]
    try:
        read = PlanHead.model_validate(values)
    except ValidationError as error:
        yield from mistakes_of(error, Plan, values)
        for place in {one["loc"][0] for one in error.errors(include_url=False)}:
            values.pop(str(place), None)
    else:
        values.update({name: getattr(read, name) for name in read.model_fields_set})


def _read_nodes(
    tasks: Sequence[Any], bounds: Bounds, declared: Any, asked: Asked, found: Found
) -> tuple[Node, ...]:
    """The nodes. Their mistakes are added to `found` in the order of the nodes."""
    entries: list[Entry] = []
    wrong: dict[int, list[Mistake]] = {}
    left = MOST_MISTAKES
    for n, raw in enumerate(tasks):
        entry, mistakes = read_node(raw, f"tasks[{n}]")
        entries.append(entry)
        if mistakes:
            wrong[n] = mistakes
            left -= len(mistakes)
        if left <= 0:
            break
    else:
        together = chain(Meaning(entries, bounds).mistakes(), _of_run(entries, declared, asked))
        for n, mistake in islice(together, left):
            wrong.setdefault(n, []).append(mistake)
    for n in sorted(wrong):
        found.extend(wrong[n])
    return tuple(entry.node for entry in entries)


def _of_run(
    entries: Sequence[Entry], declared: Mapping[str, Any], asked: Asked
) -> Iterator[tuple[int, Mistake]]:
    if asked.inputs is not None:
        yield from unknown_inputs(entries, {*declared, *asked.inputs})
    if asked.actions is not None:
        for n, entry in enumerate(entries):
            if entry.whole:
                yield from ((n, mistake) for mistake in asked.actions.mistakes(entry.node, entry.place))


def read_node(raw: Any, place: str) -> tuple[Entry, list[Mistake]]:
    """A node, as far as it can be read, and its own mistakes."""
    if isinstance(raw, Node):
        wrong = [*wrong_data(raw.input, 2)]
        return Entry(raw.id, place, raw, not wrong), _placed(wrong, f"{place}.input")
    if not isinstance(raw, Mapping):
        return Entry("", place, NOTHING, False), [
            Mistake(place, f"write a node, an object with id and type, not {quoted(raw)}")
        ]
    written = cast("Mapping[Any, Any]", raw)
    name: Any = written.get("id")
    wrong = list(wrong_data(written, 2))
    bad = {part[0] for part, _ in wrong if part}
    fields = {key: part for key, part in written.items() if key not in bad and isinstance(key, str)}
    mistakes = _placed(wrong, place)
    try:
        node = Node.model_validate(fields)
    except ValidationError as error:
        more = mistakes_of(error, Node, fields, place)
        bad_places = [one["loc"] for one in error.errors(include_url=False, include_input=False)]
        # A field that was left out because of another mistake must not be reported as missing.
        mistakes += [one for one in more if one.place not in {f"{place}.{name}" for name in bad}]
        node = _salvaged(fields, bad_places)
    single = frozenset(key for key in ROUTES if isinstance(written.get(key), str))
    return Entry(name if isinstance(name, str) else "", place, node, not mistakes, single), mistakes


def _placed(wrong: Iterable[tuple[Place, str]], start: str) -> list[Mistake]:
    return [Mistake(place_text(place, start), says) for place, says in wrong]


NOTHING = Node(id="_", type="_")
"""A placeholder for a node that could not be read."""


def _salvaged(fields: Mapping[str, Any], wrong: Sequence[Place]) -> Node:
    """The node without its unreadable fields, so that the others are checked too."""
    bad = {place[0] for place in wrong}
    kept = {key: part for key, part in fields.items() if key not in bad and key in Node.model_fields}
    for name in ROUTES:
        value: Any = fields.get(name)
        if name in bad and isinstance(value, list | tuple):
            kept[name] = [one if isinstance(one, str) else UNREAD for one in cast("list[Any]", value)]
    if "transitions" in bad and isinstance(fields["transitions"], list | tuple):
        lost = {place[1] for place in wrong if place[0] == "transitions" and len(place) > 1}
        ways = cast("list[Any]", fields["transitions"])
        kept["transitions"] = [_way(way) if n in lost else way for n, way in enumerate(ways)]
    return Node.model_validate({"id": "_", "type": "_", **kept})


def _way(way: Any) -> dict[str, Any]:
    """The target of a transition that has another mistake."""
    fields: Mapping[str, Any] = cast("Mapping[str, Any]", way) if isinstance(way, Mapping) else {}
    to: Any = fields.get("to", fields.get("to_node_id"))
    return {"to": to if isinstance(to, str) else UNREAD}
