"""Conditions and values that somebody made to hang, to fill the memory or to break the stack: none does."""

from __future__ import annotations

import time
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from pydantic import ValidationError

from prefect_resilience import Condition, ConditionError, ConfigurationError, path
from tests.graphs.conditions.strategies import condition_mistakes

pytestmark = [pytest.mark.no_cover, pytest.mark.slow]

MOST_SECONDS = 3.0
MOST_BYTES = 100 * 2**20


@contextmanager
def cheap() -> Iterator[None]:
    """Under a second of computing, whatever else the machine does."""
    start = time.thread_time()
    yield
    assert time.thread_time() - start < MOST_SECONDS


@contextmanager
def small() -> Iterator[None]:
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < MOST_BYTES
    finally:
        tracemalloc.stop()


def error_of(call: Callable[[], Any]) -> str:
    """What the ConditionError of a call says, nothing if there was none."""
    try:
        call()
    except ConditionError as error:
        return str(error)
    return ""


def nested(levels: int, kind: str = "not") -> dict[str, Any]:
    form: dict[str, Any] = {"operator": "success"}
    for _ in range(levels):
        form = {"type": "not", "condition": form} if kind == "not" else {"type": kind, "conditions": [form]}
    return form


SLOW_PATTERNS = [
    "(a+)+$",
    "(?:a?){50}a{50}$",
    r"^(\w+\s?)*$",
    "^(([a-z])+.)+[A-Z]([a-z])+$",
    "(?<=(a+)+)[^a!]",
    "(?=(a+)+$)b",
]


@pytest.mark.parametrize("pattern", SLOW_PATTERNS)
def test_no_pattern_runs_for_ever(pattern: str) -> None:
    condition = path("a").matches(pattern)
    says = f"the pattern {pattern!r} took longer than 0.25 s to match"
    for text in ("a" * 100_000 + "!", "ab" * 50_000, "x" * 1_000_000):
        with cheap():
            assert error_of(lambda: condition.evaluate({"a": text})) in ("", says)  # noqa: B023


@pytest.mark.parametrize("function", ["match", "search"])
def test_no_pattern_in_a_filter_runs_for_ever(function: str) -> None:
    with cheap(), pytest.raises(ConditionError, match="took longer"):
        (path(f"$..[?{function}(@.a, '(a+)+$')]").exists()).evaluate([{"a": "a" * 100_000 + "!"}] * 50)


REFUSED_PATTERNS = [
    "[",
    "(?:a{1000}){1000}",
    "a{1000000}",
    "(?:(?:(?:x{50}){50}){50}){50}",
    "(?R)*",
    "(?P<n>a)(?&n)",
]


@pytest.mark.parametrize("pattern", REFUSED_PATTERNS)
def test_a_pattern_that_is_dear_or_wrong_is_refused_before_it_is_compiled(pattern: str) -> None:
    form = {"operator": "matches", "path": "a", "value": pattern}
    with cheap(), small():
        ((place, sentence),) = condition_mistakes(form)
    assert place == ("value",)
    assert len(sentence) < 300


@pytest.mark.parametrize("kind", ["not", "all", "any"])
@pytest.mark.parametrize("levels", [100, 5_000, 100_000])
def test_nesting_is_refused_without_recursion(kind: str, levels: int) -> None:
    form = nested(levels, kind)
    with cheap():
        assert [sentence for _, sentence in condition_mistakes(form)] == [
            "conditions may be nested at most 100 levels deep"
        ]
        with pytest.raises(ValidationError, match="nested at most 100 levels deep"):
            Condition.model_validate(form)
        with pytest.raises(ConfigurationError, match="nested at most 100 levels deep"):
            Condition(**form)


def loop() -> list[Any]:
    value: list[Any] = [1]
    value.append(value)
    return value


def tower(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


def laughs() -> Any:
    value: Any = ["ha"]
    for _ in range(30):
        value = [value] * 10
    return value


MADE_VALUES: list[tuple[str, Callable[[], Any]]] = [
    ("loop", loop),
    ("tower", lambda: tower(100_000)),
    ("laughs", laughs),
    ("many", lambda: list(range(500_000))),
    ("keys", lambda: {f"k{i}": i for i in range(150_000)}),
    ("long text", lambda: "a" * 10_000_000),
    ("big number", lambda: 10**100_000),
]

ASKED = [
    path("it") == [[[1]]],
    path("it") == "x",
    path("it").contains("zz"),
    path("it").matches("b+c"),
    path("it.k1.zz") == 1,
    path("$..zz").exists(),
    path("$..*..*..*") == 1,
]


@pytest.mark.parametrize(("name", "made"), MADE_VALUES, ids=[name for name, _ in MADE_VALUES])
def test_no_value_takes_long_or_breaks_the_stack(name: str, made: Callable[[], Any]) -> None:
    value = {"it": made()}
    for condition in ASKED:
        with cheap():
            assert len(error_of(lambda: condition.explain(value))) < 600  # noqa: B023
