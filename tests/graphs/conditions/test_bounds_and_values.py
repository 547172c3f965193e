"""Where each bound of the conditions lies, exactly, and what plain values are and how they compare."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta, timezone, tzinfo
from decimal import Decimal
from enum import Enum
from typing import Any
from uuid import UUID

import numpy
import pytest

from prefect_resilience import Condition, ConditionError, path
from prefect_resilience.base.plain import (
    ValueMistake,
    json_value,
    not_json,
    plain,
    plain_or_cut,
    shortly,
    unfold,
)
from prefect_resilience.graphs.conditions import evaluate
from prefect_resilience.graphs.conditions.compare import EvaluationBounds, equal, instant
from prefect_resilience.graphs.conditions.evaluate import Evaluation

SECOND = 10**18
UTC, PLUS_TWO = UTC, timezone(timedelta(hours=2))


def free(steps: int = 1_000) -> EvaluationBounds:
    return EvaluationBounds(steps=steps, clock=float)


def error_of(call: Callable[[], Any], kind: type[Exception] = ConditionError) -> str:
    with pytest.raises(kind) as raised:
        call()
    return str(raised.value)


def nested(levels: int) -> Any:
    value: Any = 1
    for _ in range(levels):
        value = [value]
    return value


# -- bounds

TOO_MANY = "the value has too many parts for the condition to check"


class Late:
    """Is far ahead when it is looked at again."""

    def __init__(self) -> None:
        self.now = -100.0

    def __call__(self) -> float:
        self.now += 100
        return self.now


class Clock:
    """Stands still, and counts who looks at it."""

    def __init__(self, now: float = 0.0) -> None:
        self.now, self.looks = now, 0

    def __call__(self) -> float:
        self.looks += 1
        return self.now


def test_the_clock_is_looked_at_every_1024_steps() -> None:
    clock = Clock()
    bounds = EvaluationBounds(steps=3_000, clock=clock)
    seen: list[int] = []
    for step in range(1, 3_001):
        before = clock.looks
        bounds.step()
        if clock.looks > before:
            seen.append(step)
    assert seen == [3_000 - 2 * 1_024, 3_000 - 1_024, 3_000]


def test_bounds_are_handed_on() -> None:
    def ask(asked: Condition, value: Any, **bounds: Any) -> bool:
        return Evaluation(value, None, None, None, EvaluationBounds(**bounds)).of(asked).holds

    asked, value = path("a").contains(9), {"a": list(range(5))}
    assert not ask(asked, value, steps=6, clock=float)
    assert error_of(lambda: ask(asked, value, steps=5, clock=float)) == TOO_MANY
    assert "longer than 0.5 s" in error_of(lambda: ask(asked, value, steps=1_025, clock=Late()))
    every = path("$[*]").exists()
    assert ask(every, [1, 2], steps=4, clock=float)
    assert error_of(lambda: ask(every, [1, 2], steps=3, clock=float)) == TOO_MANY


# -- comparing


def test_each_part_that_is_compared_is_a_step() -> None:
    pairs: list[tuple[Any, Any, int]] = [
        (1, 1, 1),
        ("a", [1], 1),
        ([], "a", 1),
        ([1, 2], [1, 2], 3),
        ([1, 2], [1], 1),
        ({"a": 1, "b": [2]}, {"a": 1, "b": [2]}, 4),
        ({"a": 1}, {"b": 1}, 1),
        ([1, 2, 3], [1, 2, 4], 2),
    ]
    for one, other, steps in pairs:
        answer = equal(one, other, free(steps))
        assert answer is (one == other)
        with pytest.raises(ConditionError, match=TOO_MANY):
            equal(one, other, free(steps - 1))


class Broken(tzinfo):
    def utcoffset(self, dt: datetime | None) -> timedelta:
        raise RuntimeError("no")


INSTANTS: list[tuple[Any, Any]] = [
    ("0001-01-01T00:00:00", (False, 0)),
    ("0001-01-01t00:00:01.5z", (True, 3 * SECOND // 2)),
    ("0001-01-01T00:00:01.000000000000000001Z", (True, SECOND + 1)),
    (
        "0001-01-02T00:00:00.123456789012345678+01:30",
        (True, 86_400 * SECOND - 5_400 * SECOND + 123456789012345678),
    ),
    ("0001-01-01T00:00:00+00:01", (True, -60 * SECOND)),
    ("0001-01-01T00:00:00+24:00", None),
    ("0001-01-01T00:00:00.1234567890123456789Z", None),
    ("0001-02-30T00:00:00", None),
    ("0001-01-01T00:00", None),
    (datetime(1, 1, 1, 0, 0, 1, 5), (False, SECOND + 5 * 10**12)),
    (datetime(1, 1, 1, 2, tzinfo=PLUS_TWO), (True, 0)),
    (datetime(1, 1, 1, 3, fold=1, tzinfo=UTC), (True, 10_800 * SECOND)),
    (datetime(1, 1, 1, tzinfo=Broken()), None),
    (date(1, 1, 1), None),
    (3, None),
]


@pytest.mark.parametrize(("value", "means"), INSTANTS)
def test_which_instant_is_meant(value: Any, means: Any) -> None:
    assert instant(value) == means


# -- the values that conditions hold


def test_how_much_a_condition_may_hold() -> None:
    assert json_value([0] * 9_999) == [0] * 9_999
    assert json_value({str(i): 0 for i in range(9_999)})
    too_many = "a value may have at most 10,000 parts"
    assert error_of(lambda: json_value([0] * 10_000), ValueMistake) == too_many
    assert json_value(nested(100)) == nested(100)
    too_deep = "a value may be at most 100 levels deep"
    assert error_of(lambda: json_value(nested(101)), ValueMistake) == too_deep
    assert error_of(lambda: json_value({"a": nested(100)}), ValueMistake) == too_deep
    half = "x" * 500_000
    assert json_value([half, half]) == [half, half]
    assert json_value({half: half}) == {half: half}
    too_long = "the strings of a value may have at most 1,000,000 characters"
    for value in ([half, half, "x"], {half: [half, "x"]}, {half + "x": half}):
        assert error_of(lambda: json_value(value), ValueMistake) == too_long  # noqa: B023


def test_which_values_a_condition_may_hold() -> None:
    biggest = 10**1_000 - 1
    offset = timezone(timedelta(minutes=19, seconds=32))
    kept: list[tuple[Any, Any]] = [
        (biggest, biggest),
        (Decimal("0.5"), 0.5),
        (Decimal(10**22 + 1), 10**22 + 1),
        (Decimal("1e999"), 10**999),
        (datetime(2024, 1, 1, tzinfo=offset), "2023-12-31T23:40:28+00:00"),
        (datetime(2024, 1, 1, 5, tzinfo=PLUS_TWO), "2024-01-01T05:00:00+02:00"),
        (False, False),
        (date(2024, 1, 1), "2024-01-01"),
        (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
        (Text.ONE, "1"),
        ((1, (2,)), [1, [2]]),
    ]
    for value, means in kept:
        assert json_value(value) == means
        assert type(json_value(value)) is type(means)
    refused: list[tuple[Any, str]] = [
        (10**1_000, "a whole number may have at most 1,000 digits"),
        (Decimal("0.1"), "Decimal('0.1') is not exact as a JSON number: write a float or a string"),
        (Decimal("1e1000"), "Decimal('1E+1000') is not exact as a JSON number: write a float or a string"),
        ({1: 2}, "the keys of a value must be strings, not 1"),
        ("\ud800", "'\\ud800' contains a lone surrogate (half a character): write valid Unicode"),
        (
            {1},
            "a value must be a JSON value (null, true, a number, a string, a list, a mapping) "
            "or a time, not set",
        ),
    ]
    for value, sentence in refused:
        assert error_of(lambda: json_value(value), ValueMistake) == sentence  # noqa: B023
    for infinite in (Decimal("Infinity"), Decimal("-Infinity"), float("inf")):
        assert json_value(infinite) == float(infinite)
    assert all(json_value(Decimal(nan)) != json_value(Decimal(nan)) for nan in ("NaN", "sNaN"))


def test_what_json_does_not_have() -> None:
    assert not_json([1, {"a": [1.5, "nan"]}]) is None
    for value in (float("inf"), [0, float("inf")], {"a": {"b": [float("inf")]}, "c": 1}):
        assert not_json(value) == "JSON has no inf: write a finite number, or compare in Python"


class Rude:
    def __repr__(self) -> str:
        raise RuntimeError("no")


class Long:
    def __init__(self, letters: int) -> None:
        self.letters = letters

    def __repr__(self) -> str:
        return "y" * self.letters


def test_values_in_a_few_characters() -> None:
    shown: list[tuple[Any, str]] = [
        ("x" * 60, repr("x" * 60)),
        ("x" * 61, repr("x" * 59 + "…")),
        (10**60 - 1, "9" * 60),
        (10**60, "a huge number"),
        ([], "a list"),
        (Rude(), "<Rude>"),
        (Long(60), "y" * 60),
        (Long(61), "y" * 59 + "…"),
    ]
    for value, text in shown:
        assert shortly(value) == text
    assert shortly("x" * 4, limit=3) == "'xx…'"
    assert shortly(1_000, limit=3) == "a huge number"


def test_values_in_reasons() -> None:
    six, seven = list("abcdef"), list("abcdefg")
    values: list[tuple[Any, str]] = [
        (six, "['a', 'b', 'c', 'd', 'e', 'f']"),
        (seven, "a list of 7"),
        (10**60, "a huge number"),
        (date(2026, 1, 2), "2026-01-02"),
        (Long(61), "y" * 60),
        ([1, date(2026, 1, 2)], "[1, 2026-01-02]"),
    ]
    for value, text in values:
        assert evaluate.shown(value) == text
    secret = "sk-" + "a1" * 20
    assert evaluate.masked("token", [secret, 5]) == ["***", 5]
    assert evaluate.masked("token", [secret] * 6) == ["***"] * 6
    assert evaluate.masked("token", [secret] * 7) == [secret] * 7


# -- plain data


def test_how_much_is_copied() -> None:
    cut = nested(100)
    assert plain(cut) == cut
    found = plain(nested(101))
    for _ in range(100):
        found = found[0]
    assert found == "…"
    assert plain(list(range(100_001))) == list(range(100_000))
    assert plain_or_cut({"a": {"b": 1}}, depth=1, items=9) == ({"a": "…"}, True)
    assert plain_or_cut([[], []], depth=2, items=2) == ([[], []], False)
    assert plain_or_cut(3, depth=0, items=0) == (3, False)


class Text(str, Enum):  # noqa: UP042
    """As text it is one thing, as a value another."""

    number: int

    def __new__(cls, text: str, number: int) -> Text:
        made = str.__new__(cls, text)
        made._value_ = str(number)
        return made

    ONE = ("one", 1)


class Listing:
    def tolist(self) -> list[int]:
        return [1]

    def __str__(self) -> str:
        return "listing"


def test_kinds_of_plain_data() -> None:
    assert plain({Text.ONE: 1, None: 2, True: 3, False: 4, b"k" * 10_001: 5, 1.5: 6}) == {
        "1": 1,
        "null": 2,
        "true": 3,
        "false": 4,
        "k" * 10_001: 5,
        "1.5": 6,
    }
    assert plain({10, 9, "1"}) == [10, 9, "1"]
    assert plain(Listing()) == "listing"
    assert plain(numpy.ma.array([1, 2])) == [1, 2]
    assert unfold(memoryview(b"ab")) == "ab"
    assert plain({Long(10_001): 1}) == {"y" * 10_000: 1}
    assert plain(Long(10_001)) == "y" * 10_000
