"""Conditions of every kind, values that they can hold, and results that they may be asked about."""

import math
from collections.abc import Callable
from datetime import UTC, timedelta, timezone
from typing import Any

from hypothesis import strategies as st

from prefect_resilience import Condition, ErrorCategory
from prefect_resilience.graphs.conditions.reading import Place, Reading

NAMES = [
    "confidence",
    "state",
    "a b",
    "größe",
    "0",
    "-1",
    "x.y",
    "it's",
    'say "so"',
    "[0]",
    "$",
    "名",
    "*",
    "",
]
"""Keys that results have: usual ones, and those that a path must quote."""

COMPARING = ["contains", "equals", "not_equals", "gt", "gte", "lt", "lte"]

names = st.sampled_from(NAMES) | st.text(st.characters(exclude_categories=["Cs"]), max_size=8)


def quoted(name: str) -> str:
    """A key as a path writes it, whatever its letters."""
    return '["' + name.replace("\\", "\\\\").replace('"', '\\"') + '"]'


dotted = st.lists(
    st.sampled_from(["confidence", "results", "0", "7", "[0]", "[-1]"]) | names.map(quoted),
    min_size=1,
    max_size=4,
).map(lambda parts: "".join(part if part[0] == "[" else f".{part}" for part in parts).removeprefix("."))

queries = st.sampled_from(
    ["$", "$.a[0]", "$..id", "$.items[*].x", "$[?@.x > 1]", "$[?match(@.a, 'b.*')].c", "$[-1:]"]
)

paths = dotted | queries

times = st.datetimes(timezones=st.none() | st.sampled_from([UTC, timezone(timedelta(hours=-5.5))]))

scalars = (
    st.none()
    | st.booleans()
    | st.integers()
    | st.sampled_from([2**53 + 1, 2**63, 10**300, -(10**300)])
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
)

values = st.recursive(
    scalars | times | st.dates(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=3),
    max_leaves=6,
)

patterns = st.sampled_from(["^a+$", r"\d{4}", "(?i)x|y", "", "[^.]*", r"\p{Lu}"])

tasks = st.none() | st.sampled_from(["kg_query", "llm"])


@st.composite
def leaves(draw: st.DrawFn, values: st.SearchStrategy[Any] = values) -> Condition:
    """Conditions without others inside."""
    task = draw(tasks)
    kind = draw(st.sampled_from(["error", "failed", "presence", "matches", "in", "comparing", "comparing"]))
    if kind == "error":
        return Condition(operator=draw(st.sampled_from(["error_occurred", "success"])), source_task=task)
    if kind == "failed":
        category = draw(st.none() | st.sampled_from([word.value for word in ErrorCategory]))
        return Condition(
            operator="failed", category=category, code=draw(st.none() | st.just("429")), source_task=task
        )
    path = draw(paths)
    if kind == "presence":
        return Condition(
            operator=draw(st.sampled_from(["exists", "not_exists"])), path=path, source_task=task
        )
    if kind == "matches":
        return Condition(operator="matches", path=path, value=draw(patterns), source_task=task)
    if kind == "in":
        return Condition(operator="in", path=path, value=draw(st.lists(values, max_size=3)), source_task=task)
    return Condition(
        operator=draw(st.sampled_from(COMPARING)), path=path, value=draw(values), source_task=task
    )


def _composed(inner: st.SearchStrategy[Condition]) -> st.SearchStrategy[Condition]:
    several = st.lists(inner, min_size=1, max_size=3)
    return (
        st.builds(lambda parts: Condition(operator="all", conditions=parts), several)
        | st.builds(lambda parts: Condition(operator="any", conditions=parts), several)
        | st.builds(lambda part: Condition(operator="not", conditions=[part]), inner)
    )


conditions: st.SearchStrategy[Condition] = st.recursive(leaves(), _composed, max_leaves=6)
"""Any condition that can be written as JSON."""

results = st.recursive(
    scalars | st.sampled_from([math.nan, math.inf]) | times | st.decimals() | st.binary(max_size=4),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(names, inner, max_size=4),
    max_leaves=10,
)
"""Whatever an action may return."""


def from_a_deep_stack(levels: int, ask: Callable[[], Any]) -> Any:
    """The answer of `ask`, called with this many frames below it: few are left until Python's limit."""
    return from_a_deep_stack(levels - 1, ask) if levels else ask()


def condition_mistakes(data: Any, *, json: bool = False) -> list[tuple[Place, str]]:
    """Every mistake of a condition's data: place and sentence. With `json`, NaN is one, too."""
    return Reading(data, Condition, json=json).mistakes
