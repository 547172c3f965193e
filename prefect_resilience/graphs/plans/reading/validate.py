"""Every mistake of a plan, each with its place: first of single nodes, then of all nodes together."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import chain, islice
from operator import itemgetter
from typing import Any, cast

from pydantic import ValidationError

from prefect_resilience.graphs.plans.model import Asked, Bounds, CheckedActions, Node, Plan, PlanHead
from prefect_resilience.graphs.plans.reading.data import WrittenTwice, wrong_data
from prefect_resilience.graphs.plans.reading.meaning import UNREAD, Entry, Meaning, unknown_inputs
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

ROUTES = ("depends_on", "on_success", "on_failure", "handles_error")


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


def build_plan(data: Any, asked: Asked, source: str = "the plan") -> Plan:
    """The plan of this data. Raises `PlanError` with every mistake."""
    try:
        return Plan.model_validate(data, context=asked)
    except ValidationError:
        raise PlanError(asked.mistakes, source) from None


def mistakes_of_run(
    plan: Plan, actions: CheckedActions | None, inputs: Mapping[str, Any] | None
) -> list[Mistake]:
    """The mistakes that keep a valid plan from running with these actions and inputs."""
    entries = [Entry(node.id, f"tasks[{n}]", node, True) for n, node in enumerate(plan.tasks)]
    mistakes = islice(_of_run(entries, plan.inputs, Asked(actions, inputs)), MOST_MISTAKES)
    return [mistake for _, mistake in mistakes]


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
        together = chain(Meaning(entries, bounds).mistakes(), _of_run(entries, declared, asked))
        wrong += islice(together, MOST_MISTAKES - len(wrong))
    in_order = [mistake for _, mistake in sorted(wrong, key=itemgetter(0))]
    return tuple(entry.node for entry in entries), in_order


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
    single = frozenset(key for key in ROUTES if isinstance(written.get(key), str))
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
    for name in ROUTES:
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
