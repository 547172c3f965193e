"""Reads a plan from a file, a text or data, with every mistake in its place.

The mistakes of single nodes come first, then those of all nodes together. A node with mistakes is checked as
far as it can be read, so that no mistake hides another.
"""

from __future__ import annotations

from collections.abc import Container, Iterable, Iterator, Mapping, Sequence
from itertools import islice
from operator import itemgetter
from pathlib import Path
from typing import Any, cast

from pydantic import ValidationError

from prefect_resilience.graphs.plans.model import (
    Asked,
    Bounds,
    Cache,
    CheckedActions,
    Inject,
    Node,
    Plan,
    PlanHead,
)
from prefect_resilience.graphs.plans.reading.data import (
    WrittenTwice,
    data_of,
    data_of_file,
    data_of_text,
    is_text,
    refuse,
    source_name,
    wrong_data,
)
from prefect_resilience.graphs.plans.reading.meaning import KINDS, UNREAD, Entry, Meaning, Numbered
from prefect_resilience.graphs.plans.reading.mistakes import (
    MOST_MISTAKES,
    Mistake,
    Place,
    PlanError,
    mistakes_of,
    place_text,
    quote,
)
from prefect_resilience.graphs.plans.reading.spellings import Spellings
from prefect_resilience.graphs.plans.templates import references


def read_plan(
    source: Plan | Mapping[str, Any] | str | Path,
    *,
    actions: CheckedActions | None = None,
    inputs: Mapping[str, Any] | None = None,
) -> Plan:
    """The plan of `source`: a plan, its data, a file's path, or a string of JSON or YAML.

    A string that begins with `{` or `[` or has several lines is a plan. Any other string is a path. With
    `actions` and `inputs`, it also checks that the plan can run with these.

    Raises `PlanError` with all mistakes, each with its place.
    """
    context = Asked(actions, inputs)
    if isinstance(source, Plan):
        if wrong := source.check(actions, inputs):
            raise PlanError(wrong)
        return source
    if isinstance(source, Mapping):
        return build_plan(source, context)
    if not isinstance(cast("Any", source), str | Path):
        right = "write a plan, its data, a file's path, or a string of JSON or YAML"
        refuse("the plan", f"{right}, not {quote(source)}")
    name = "the plan" if isinstance(source, str) and is_text(source) else source_name(source)
    return build_plan(data_of(source), context, name)


def from_text(text: str, asked: Asked | None = None, source: str = "the plan") -> Plan:
    """The plan in a text: JSON if it begins with `{`, `[` or a comment, else YAML. Raises PlanError."""
    return build_plan(data_of_text(text, source), asked or Asked(), source)


def from_file(path: str | Path, asked: Asked | None = None) -> Plan:
    """The plan in a `.json`, `.yaml` or `.yml` file. Raises PlanError."""
    return build_plan(data_of_file(path), asked or Asked(), source_name(path))


def build_plan(data: Any, asked: Asked, source: str = "the plan") -> Plan:
    """The plan of this data. Raises `PlanError` with every mistake."""
    try:
        return Plan.model_validate(data, context=asked)
    except ValidationError:
        raise PlanError(asked.mistakes, source) from None


def read_fields(data: Any, asked: Asked) -> dict[str, Any]:
    """The values of a plan's fields, with its nodes read. They are valid only if `asked` has no mistakes."""
    if not isinstance(data, Mapping):
        says = f"a plan is an object with its nodes in 'tasks', not {quote(data)}"
        asked.mistakes.append(Mistake("", says))
        return {}
    spelled = Spellings(cast("Mapping[Any, Any]", data))
    tasks: Any = spelled.data.pop("tasks", None)
    values = {str(key): part for key, part in spelled.data.items()}
    mistakes = [*spelled.mistakes, *_wrong_fields(values)]
    bounds = values.get("bounds", Bounds())
    if wrong := _wrong_list("tasks" in data, tasks, bounds):
        mistakes.append(Mistake("tasks", wrong))
    else:
        values["tasks"], wrong_nodes = _read_nodes(tasks, bounds, values.get("inputs", {}), asked)
        mistakes += wrong_nodes
    asked.mistakes += [
        Mistake(spelled.place(mistake.place), mistake.message) for mistake in mistakes[:MOST_MISTAKES]
    ]
    return values


def _wrong_list(is_written: bool, tasks: Any, bounds: Bounds) -> str:
    if not is_written:
        return "is missing: the list of the plan's nodes"
    if isinstance(tasks, WrittenTwice):
        return str(tasks)
    if not isinstance(tasks, list | tuple):
        return f"write a list of nodes, not {quote(tasks)}"
    count = len(cast("list[Any]", tasks))
    if count > bounds.nodes:
        return f"{count:,} nodes are more than the {bounds.nodes:,} that bounds.nodes allows"
    return "" if count else "is empty: write at least one node"


def mistakes_of_run(
    plan: Plan, actions: CheckedActions | None, inputs: Mapping[str, Any] | None
) -> list[Mistake]:
    """The mistakes that keep a valid plan from running with these actions and inputs."""
    entries = [Entry(node.id, f"tasks[{n}]", node, True) for n, node in enumerate(plan.tasks)]
    mistakes = _together(entries, plan.bounds, plan.inputs, Asked(actions, inputs))
    return [mistake for _, mistake in islice(mistakes, MOST_MISTAKES)]


def _wrong_fields(values: dict[str, Any]) -> Iterator[Mistake]:
    """The mistakes of the plan's own fields. Valid fields are replaced in `values` by their parsed form."""
    data = {name: value for name, value in values.items() if not isinstance(value, Bounds)}
    wrong = list(wrong_data(data, 0))
    yield from _at_places(wrong, "")
    bad = {place[0] for place, _ in wrong if place}
    for name in bad:
        del values[str(name)]
    try:
        head = PlanHead.model_validate(values)
    except ValidationError as error:
        yield from mistakes_of(error, Plan, values)
        for detail in error.errors(include_url=False):
            values.pop(str(detail["loc"][0]), None)
        head = PlanHead.model_validate(values)
    values.update({name: getattr(head, name) for name in head.model_fields_set})


def _read_nodes(
    tasks: Sequence[Any], bounds: Bounds, declared: Mapping[str, Any], asked: Asked
) -> tuple[tuple[Node, ...], list[Mistake]]:
    """The nodes, and their mistakes in the order of the nodes."""
    entries: list[Entry] = []
    wrong: list[tuple[int, Mistake]] = []
    for number, raw in enumerate(tasks):
        entry, mistakes = read_node(raw, f"tasks[{number}]")
        entries.append(entry)
        wrong += [(number, mistake) for mistake in mistakes]
        if len(wrong) >= MOST_MISTAKES:
            break
    else:
        wrong += islice(_together(entries, bounds, declared, asked), MOST_MISTAKES - len(wrong))
    in_order = [mistake for _, mistake in sorted(wrong, key=itemgetter(0))]
    return tuple(entry.node for entry in entries), in_order


def _together(
    entries: Sequence[Entry], bounds: Bounds, declared: Mapping[str, Any], asked: Asked
) -> Numbered:
    """The mistakes of all nodes together, and those that the actions find, with the numbers of the nodes."""
    inputs = None if asked.inputs is None else {*declared, *asked.inputs}
    yield from Meaning(entries, bounds, inputs).mistakes()
    if asked.actions is not None:
        for n, entry in enumerate(entries):
            if entry.whole:
                yield from ((n, mistake) for mistake in asked.actions.mistakes(entry.node, entry.place))


def read_node(raw: Any, place: str) -> tuple[Entry, list[Mistake]]:
    """A node, as far as it can be read, and its own mistakes."""
    if isinstance(raw, Node):
        mistakes = _at_places(wrong_data(raw.input, 2), f"{place}.input")
        return Entry(raw.id, place, raw, not mistakes), mistakes
    if not isinstance(raw, Mapping):
        says = f"write a node, an object with id and type, not {quote(raw)}"
        return Entry("", place, NOTHING, False), [Mistake(place, says)]
    written = cast("Mapping[Any, Any]", raw)
    wrong = list(wrong_data(written, 2))
    mistakes = _at_places(wrong, place)
    bad = {part[0] for part, _ in wrong if part}
    fields = {key: part for key, part in written.items() if key not in bad and isinstance(key, str)}
    try:
        node = Node.model_validate(fields)
    except ValidationError as error:
        # A field that was left out because of another mistake must not be reported as missing.
        reported = {f"{place}.{name}" for name in bad}
        mistakes += [more for more in mistakes_of(error, Node, fields, place) if more.place not in reported]
        node = _salvage(fields, [detail["loc"] for detail in error.errors(include_url=False)])
    single = frozenset(key for key in KINDS if isinstance(written.get(key), str))
    name: Any = written.get("id")
    return Entry(name if isinstance(name, str) else "", place, node, not mistakes, single), mistakes


def _at_places(wrong: Iterable[tuple[Place, str]], start: str) -> list[Mistake]:
    return [Mistake(place_text(place, start), says) for place, says in wrong]


NOTHING = Node(id="_", type="_")
"""A placeholder for a node that could not be read."""


def _salvage(fields: Mapping[str, Any], wrong: Sequence[Place]) -> Node:
    """The node without its unreadable fields, so that the others are checked too."""
    bad = {place[0] for place in wrong}
    good = {key: part for key, part in fields.items() if key not in bad and key in Node.model_fields}
    for name in KINDS:
        value: Any = fields.get(name)
        if name in bad and isinstance(value, list | tuple):
            good[name] = [part if isinstance(part, str) else UNREAD for part in cast("list[Any]", value)]
    if "transitions" in bad and isinstance(fields["transitions"], list | tuple):
        lost = {place[1] for place in wrong if place[0] == "transitions" and len(place) > 1}
        ways = cast("list[Any]", fields["transitions"])
        good["transitions"] = [_way(way) if n in lost else way for n, way in enumerate(ways)]
    return Node.model_validate({"id": "_", "type": "_", **good})


def _way(way: Any) -> dict[str, Any]:
    """The target of a transition that has another mistake."""
    fields: Mapping[str, Any] = cast("Mapping[str, Any]", way) if isinstance(way, Mapping) else {}
    to: Any = fields.get("to", fields.get("to_node_id"))
    return {"to": to if isinstance(to, str) else UNREAD}


def read_added(
    inject: Inject,
    *,
    by: str,
    nodes: Mapping[str, Node],
    ended: Container[str],
    plan: Plan,
    actions: CheckedActions,
) -> list[Node]:
    """The nodes to add, read and checked. Raises PlanError with places such as `inject[0].type`.

    nodes: the nodes of the plan so far. ended: the ids of the nodes that have ended.
    """
    entries: list[Entry] = []
    mistakes: list[Mistake] = []
    for n, written in enumerate(inject.nodes):
        entry, wrong = read_node(written, f"inject[{n}]")
        entries.append(entry)
        mistakes += wrong
    earlier = [_entry_of(node) for node in nodes.values()]
    whole = [_after(entry, by, ended) if entry.whole else entry for entry in entries]
    mistakes += [mistake for _, mistake in Meaning([*earlier, *whole], plan.bounds).mistakes()]
    for entry in entries:
        if entry.whole:
            mistakes += actions.mistakes(entry.node, entry.place)
    if mistakes:
        raise PlanError(mistakes, f"the Inject of {by!r}")
    return [entry.node for entry in entries]


def _entry_of(node: Node) -> Entry:
    """A node of the plan that was checked before: only its id is needed."""
    return Entry(node.id, "the plan", Node.model_construct(id=node.id, type=node.type), True)


def _after(entry: Entry, by: str, ended: Container[str]) -> Entry:
    """The node with dependencies on the ended nodes that its templates use: it may use their outputs."""
    node = entry.node
    parts = [
        node.input,
        node.map and node.map.over,
        node.cache.key if isinstance(node.cache, Cache) else None,
    ]
    used = {name for name in references(parts, names=node.names) if name in ended} | {by}
    behind = (*node.depends_on, *sorted(used - {node.id, *node.depends_on}))
    return entry._replace(node=node.model_copy(update={"depends_on": behind}))
