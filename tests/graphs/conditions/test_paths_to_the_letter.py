"""Paths, `$` paths and patterns to the letter: every sentence about them, and where their bounds lie."""

from collections.abc import Callable
from datetime import date, datetime
from typing import Any

import pytest

from prefect_resilience.graphs.conditions import compare, jsonpaths, paths
from prefect_resilience.graphs.conditions.compare import ConditionError, EvaluationBounds, matches
from prefect_resilience.graphs.conditions.paths import Missing, PathError, check_path, look_up
from tests.graphs.conditions.strategies import from_a_deep_stack


@pytest.fixture(autouse=True)
def nothing_is_remembered() -> None:
    """Each is read anew, so that what another test has read does not answer for it."""
    for remembered in (paths.parsed, jsonpaths.compiled, compare.compiled_pattern):
        remembered.cache_clear()


def free(steps: int = 1_000) -> EvaluationBounds:
    return EvaluationBounds(steps=steps, clock=float)


def error_of(call: Callable[[], Any], kind: type[Exception]) -> str:
    with pytest.raises(kind) as raised:
        call()
    return str(raised.value)


# -- dotted paths


def test_how_long_a_path_may_be() -> None:
    for path in ("a" * 1_000, "$." + "a" * 998):
        check_path(path)
    for path in ("a" * 1_001, "$." + "a" * 999):
        with pytest.raises(PathError) as raised:
            check_path(path)
        assert str(raised.value) == "a path may have at most 1000 characters, not 1001"
        assert raised.value.column == 1
    for path in ("['\ud800']", "$['\ud800']"):
        said = "contains a lone surrogate (half a character)"
        assert error_of(lambda: check_path(path), PathError) == f"{path!r} {said}"  # noqa: B023
    assert paths.shown_path("a" * 60) == repr("a" * 60)
    assert paths.shown_path("a" * 61) == repr("a" * 59 + "…")


def test_where_near_names_are_looked_for() -> None:
    def why(path: str, value: Any) -> str:
        found = look_up(path, value)
        assert isinstance(found, Missing)
        return found.why()

    many = {f"k{number:04}": 1 for number in range(1_000)}
    assert why("k0500x", many).startswith("there is no 'k0500x' in the value; did you mean '")
    assert why("k0500x", many | {"one more": 1}) == "there is no 'k0500x' in the value"
    assert "did you mean" in why("a" * 99, {"a" * 100: 1})
    assert "did you mean" not in why("a" * 99, {"a" * 101: 1})
    assert "did you mean" in why("a" * 101, {"a" * 100: 1})


# -- `$` paths


def found(path: str, value: Any, steps: int = 1_000) -> Any:
    answer = look_up(path, value, bounds=free(steps))
    return None if isinstance(answer, Missing) else answer


QUERIES: list[tuple[str, Any, Any]] = [
    ("$[?match(@, 'b')]", ["ab", "b", 3], ["b"]),
    (
        "$[?match(@.t, @.p)]",
        [{"t": "a", "p": "a"}, {"t": "a", "p": "("}, {"t": "a", "p": 3}],
        [{"t": "a", "p": "a"}],
    ),
    ("$[?match(@, 'a.b')]", ["a\rb", "a\nb", "a b"], ["a b"]),
    (r"$[?match(@, 'a\\.b')]", ["a.b", "a b"], ["a.b"]),
    ("$[?@ == 1E2]", [100, 1], [100]),
    ("$[?@ == '2024-01-01T00:00:00Z']", ["2024-01-01T02:00:00+02:00"], None),
    ("$[?@ < '2024-01-01T00:00:00Z']", ["2024-01-01T01:00:00+02:00"], None),
    ("$[?@.a == '2024-01-01T00:00:00'].b", [{"a": datetime(2024, 1, 1), "b": 1}], [1]),
    ("$[?@.a == '2024-01-01'].b", [{"a": date(2024, 1, 1), "b": 1}], [1]),
    ("$[?@.zz == '<UNDEFINED>']", [{"a": 1}], None),
    ("$[?@.a != @.yy].a", [{"a": 1}], [1]),
    ("$[?@.a > @.yy].a", [{"a": 1}], None),
    ("$[?@.a >= @.a].a", [{"a": 1}, {"a": "x"}, {"a": None}], [1, "x", None]),
    ("$.x[?@.a[?@.b == $.c]].d", {"c": 7, "x": [{"a": [{"b": 7}], "d": 1}, {"a": [{"b": 8}], "d": 2}]}, [1]),
    ("$.*.t", {"t": 1, "x": {"t": 2, "y": {"t": 3}}}, [2]),
    ("$[0, 1]['a']", [{"a": 1}, {"a": 2}, {"a": 3}], [1, 2]),
    ("$[0]", {"[0]": 3}, None),
    ("$[?@ < 1]", [1, 0], [0]),
    ("$.a[?$.c[?$.b == @]]", {"a": [1, 2], "b": 7, "c": [7]}, [1, 2]),
    ("$.a[?$.c[?$.b == @]]", {"a": [1, 2], "b": 7, "c": [8]}, None),
    ("a.-1", {"a": [4, 5]}, 5),
    ("a['say \"so\"']", {"a": {'say "so"': 4}}, 4),
]


@pytest.mark.parametrize(("query", "value", "expected"), QUERIES)
def test_what_a_query_finds(query: str, value: Any, expected: Any) -> None:
    assert found(query, value) == expected


def test_the_functions_of_a_filter_are_those_of_conditions() -> None:
    functions = jsonpaths._Environment(strict=True).function_extensions
    for name, whole in (("match", True), ("search", False)):
        assert (type(functions[name]).__name__, functions[name].whole) == (f"_{name.title()}", whole)


STEPS: list[tuple[str, Any, int]] = [
    ("$[*]", [1, 2, 3], 4),
    ("$..a", {"b": {"a": 1}}, 3),
    ("$[?@.a]", [{"a": 1}, {"a": 2}], 7),
    ("$[?count(@.*) == 1]", [{"a": 1}], 5),
    ("$[?@ == $[0]]", [1, 1], 9),
    ("$[?@.a.b]", [1], 2),
]


@pytest.mark.parametrize(("query", "value", "steps"), STEPS)
def test_each_node_that_a_query_comes_to_is_a_step(query: str, value: Any, steps: int) -> None:
    look_up(query, value, bounds=free(steps))
    with pytest.raises(ConditionError, match="too many parts"):
        look_up(query, value, bounds=free(steps - 1))


def test_how_far_a_query_is_followed() -> None:
    def deep(levels: int) -> Any:
        value: Any = 1
        for _ in range(levels):
            value = [value]
        return value

    assert look_up("$..x", [deep(99), {"x": 1}]) == [1]
    with pytest.raises(ConditionError) as raised:
        look_up("$..x", deep(101))
    assert (
        str(raised.value) == "'$..x' cannot be followed in a value of more than 100 levels or 100,000 parts"
    )
    assert raised.value.path == "$..x"
    query = "$[*]" + ".a" * 490
    with pytest.raises(ConditionError) as raised:
        from_a_deep_stack(600, lambda: look_up(query, {"a": {"b": 1}}))
    shown = paths.shown_path(query)
    assert str(raised.value) == f"{shown} cannot be followed: it or the value is nested too deeply"
    assert raised.value.path == query
    assert raised.value.__context__ is None, "Dask pickles it, call by call"


# -- patterns


def test_what_matches() -> None:
    assert matches("b", "abc", free())
    assert not matches("b", "abc", free(), whole=True)
    assert matches("abc", "abc", free(), whole=True)
    assert not matches("x", "abc", free())
    assert matches("a$", "a" * 1_000_000, free())
    assert error_of(lambda: matches("a", "a" * 1_000_001, free()), ConditionError) == (
        "a string of 1,000,001 characters is too long to match: at most 1,000,000"
    )
