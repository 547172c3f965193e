"""Reads a plan from a file, a text or data, with every mistake in its place.

A node with mistakes is checked together with the others as far as it can be read, so that no mistake hides
another.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping, Sequence
from itertools import islice
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import ValidationError

from prefect_resilience.base.plain import shortly
from prefect_resilience.graphs.plans.model import (
    Bounds,
    Cache,
    CheckedActions,
    Inject,
    Node,
    Plan,
    PlanHead,
    PlanPart,
)
from prefect_resilience.graphs.plans.reading.data import (
    WrittenTwice,
    data_of,
    data_of_text,
    source_name,
    wrong_data,
)
from prefect_resilience.graphs.plans.reading.meaning import KINDS, UNREAD, Entry, Meaning
from prefect_resilience.graphs.plans.reading.mistakes import (
    MOST_MISTAKES,
    Mistake,
    Names,
    PlanError,
    Wrong,
    mistakes_in,
    sentences_of,
)
from prefect_resilience.graphs.plans.templates import references

M = TypeVar("M", bound=PlanPart)


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
    if isinstance(source, Plan):
        if wrong := source.check(actions, inputs):
            raise PlanError(wrong)
        return source
    name = "the plan"
    if isinstance(source, str | Path):
        name, source = source_name(source), data_of(source)
    return Plan.model_construct(**read_fields(source, actions, inputs, name))


def plan_of_text(
    text: str,
    actions: CheckedActions | None = None,
    inputs: Mapping[str, Any] | None = None,
    source: str = "the plan",
) -> Plan:
    """The plan in a string of JSON or YAML."""
    return Plan.model_construct(**read_fields(data_of_text(text, source), actions, inputs, source))


def read_fields(
    data: Any,
    actions: CheckedActions | None = None,
    inputs: Mapping[str, Any] | None = None,
    source: str = "the plan",
) -> dict[str, Any]:
    """The values of a plan's fields. Raises `PlanError` with every mistake."""
    if not isinstance(data, Mapping):
        says = f"a plan is an object with its nodes in 'tasks', not {shortly(data)}"
        raise PlanError([Mistake("", says)], source)
    fields = {**cast("Mapping[Any, Any]", data)}
    tasks: Any = fields.pop("tasks", None)
    head, mistakes = _read(PlanHead, fields)
    wrong, moved = mistakes[:MOST_MISTAKES], dict[tuple[Any, ...], tuple[Any, ...]]()
    entries: list[Entry] = []
    if says := _wrong_list("tasks" in data, tasks, head.bounds):
        wrong.append((("tasks",), says))
    else:
        entries, mistakes = _read_nodes(tasks)
        mistakes += _take_transitions(head, entries, moved)
        if len(mistakes) < MOST_MISTAKES:
            declared = {*head.inputs, *(inputs or ())} if inputs is not None else None
            mistakes += islice(
                _together(entries, head.bounds, declared, actions), MOST_MISTAKES - len(mistakes)
            )
        wrong += sorted(mistakes, key=_number)
    if wrong:
        places = ((moved.get(place[:4], place[:4]) + place[4:], says) for place, says in wrong)
        raise PlanError(mistakes_in(islice(places, MOST_MISTAKES), data), source)
    values = {name: getattr(head, name) for name in head.model_fields_set - {"transitions"}}
    return {**values, "tasks": tuple(entry.node for entry in entries)}


def _number(wrong: Wrong) -> int:
    """The number of the node with a mistake; 0 for mistakes of the whole plan."""
    kind, number, *_ = (*wrong[0], 0, 0)
    return int(number) if kind == "tasks" else 0


def _wrong_list(is_written: bool, tasks: Any, bounds: Bounds) -> str:
    if not is_written:
        return "is missing: the list of the plan's nodes"
    if isinstance(tasks, WrittenTwice):
        return str(tasks)
    if not isinstance(tasks, list | tuple):
        return f"write a list of nodes, not {shortly(tasks)}"
    count = len(cast("list[Any]", tasks))
    if count > bounds.nodes:
        return f"{count:,} nodes are more than the {bounds.nodes:,} that bounds.nodes allows"
    return "" if count else "is empty: write at least one node"


def _read_nodes(tasks: Sequence[Any]) -> tuple[list[Entry], list[Wrong]]:
    """The nodes, as far as they can be read, and their own mistakes."""
    entries: list[Entry] = []
    wrong: list[Wrong] = []
    for number, raw in enumerate(tasks):
        entry, mistakes = _read_node(raw, ("tasks", number))
        entries.append(entry)
        wrong += mistakes
        if len(wrong) >= MOST_MISTAKES:
            break
    return entries, wrong


def _read_node(raw: Any, place: tuple[str, int]) -> tuple[Entry, list[Wrong]]:
    if isinstance(raw, Node):
        node, wrong = raw, [(("input", *inside), says) for inside, says in wrong_data(raw.input, 2)]
    elif isinstance(raw, Mapping):
        node, wrong = _read(Node, cast("Mapping[Any, Any]", raw), 2, id="_", type="_")
    else:
        says = f"write a node, an object with id and type, not {shortly(raw)}"
        node, wrong = Node(id="_", type="_"), [((), says)]
    name = raw.id if isinstance(raw, Node) else cast("Any", raw).get("id") if isinstance(raw, Mapping) else ""
    entry = Entry(name if isinstance(name, str) else "", place, node, not wrong)
    return entry, [((*place, *inside), says) for inside, says in wrong]


def _read(
    model: type[M], written: Mapping[Any, Any], level: int = 0, **required: str
) -> tuple[M, list[Wrong]]:
    """The part of a plan without what cannot be read, and its mistakes."""
    data = {key: value for key, value in written.items() if not isinstance(value, PlanPart)}
    wrong = list(wrong_data(data, level))
    bad = {place[0] for place, _ in wrong if place}
    fields = {key: value for key, value in written.items() if isinstance(key, str) and key not in bad}
    try:
        return model.model_validate(fields), wrong
    except ValidationError as error:
        # A field that was left out because of another mistake must not be reported as missing.
        wrong += [(place, says) for place, says in sentences_of(error, model) if place[0] not in bad]
        unread = [detail["loc"] for detail in error.errors(include_url=False)]
    good = {key: value for key, value in fields.items() if key in model.model_fields}
    for name in {str(place[0]) for place in unread}:
        value: Any = good.pop(name, None)
        if name in (*KINDS, "transitions") and isinstance(value, list | tuple):
            numbers = {place[1] for place in unread if place[0] == name}
            parts = enumerate(cast("list[Any]", value))
            good[name] = [_unread(name, part) if n in numbers else part for n, part in parts]
    return model.model_validate({**required, **good}), wrong


def _unread(name: str, part: Any) -> Any:
    """A placeholder for a name or a transition that could not be read: its nodes may be readable."""
    if name != "transitions":
        return UNREAD
    fields = cast("Mapping[str, Any]", part if isinstance(part, Mapping) else {})
    ids = {key: fields[key] for key in ("to", "from_node_id") if isinstance(fields.get(key), str)}
    return {"to": UNREAD, **ids}


def _take_transitions(
    head: PlanHead, entries: list[Entry], moved: dict[tuple[Any, ...], tuple[Any, ...]]
) -> Iterator[Wrong]:
    """Add the transitions beside the nodes to the nodes that they leave. `moved` gets their old places."""
    numbers = {entry.id: number for number, entry in enumerate(entries)}
    for n, way in enumerate(head.transitions):
        source = way.from_node_id
        if source is None and way.to == UNREAD:
            continue
        if source is None:
            yield ("transitions", n, "from_node_id"), "is missing: the node that the transition leaves"
        elif source not in numbers:
            near = Names(numbers).suggestion(source)
            yield ("transitions", n, "from_node_id"), f"unknown node {shortly(source)}{near}"
        else:
            at = numbers[source]
            node = entries[at].node
            moved["tasks", at, "transitions", len(node.transitions)] = ("transitions", n)
            node = node.model_copy(update={"transitions": (*node.transitions, way)})
            entries[at] = entries[at]._replace(node=node)


def mistakes_of_run(
    plan: Plan, actions: CheckedActions | None, inputs: Mapping[str, Any] | None
) -> list[Mistake]:
    """The mistakes that keep a valid plan from running with these actions and inputs."""
    entries = [Entry(node.id, ("tasks", n), node, True) for n, node in enumerate(plan.tasks)]
    declared = None if inputs is None else {*plan.inputs, *inputs}
    wrong = islice(_together(entries, plan.bounds, declared, actions), MOST_MISTAKES)
    return mistakes_in(sorted(wrong, key=_number), None)


def _together(
    entries: Sequence[Entry], bounds: Bounds, inputs: Container[str] | None, actions: CheckedActions | None
) -> Iterator[Wrong]:
    """The mistakes of all nodes together, and those that the actions find."""
    yield from Meaning(entries, bounds, cast("Any", inputs)).mistakes()
    if actions is not None:
        yield from _of_actions(entries, actions)


def _of_actions(entries: Sequence[Entry], actions: CheckedActions) -> Iterator[Wrong]:
    for entry in entries:
        if entry.whole:
            yield from (((*entry.place, *place), says) for place, says in actions.mistakes(entry.node))


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
    read = [_read_node(written, ("inject", n)) for n, written in enumerate(inject.nodes)]
    wrong = [mistake for _, mistakes in read for mistake in mistakes]
    # The nodes of the plan were checked before: only their ids are needed.
    earlier = [Entry(name, (), Node.model_construct(id=name, type="_"), True) for name in nodes]
    whole = [_after(entry, by, ended) if entry.whole else entry for entry, _ in read]
    wrong += Meaning([*earlier, *whole], plan.bounds).mistakes()
    wrong += _of_actions([entry for entry, _ in read], actions)
    if wrong:
        raise PlanError(mistakes_in(wrong, {"inject": inject.nodes}), f"the Inject of {by!r}")
    return [entry.node for entry, _ in read]


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
