"""Plain data out of whatever an action returned."""

from __future__ import annotations

import dataclasses
import math
from collections import deque, namedtuple
from collections.abc import Iterator, Mapping
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from enum import Enum, IntEnum
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple
from uuid import UUID

import attrs
import numpy
import pytest
from hypothesis import given, settings
from pydantic import BaseModel, ConfigDict, SecretStr, computed_field

from prefect_resilience import path
from prefect_resilience.base.plain import CUT, is_fixed, plain, plain_or_cut, snapshot, unfold
from tests.graphs.conditions.strategies import results


class Finding(BaseModel):
    model_config = ConfigDict(extra="allow")

    name: str
    score: Decimal = Decimal("0.9")
    key: SecretStr = SecretStr("hunter2")

    @computed_field
    @property
    def doubled(self) -> Decimal:
        return self.score * 2


@dataclasses.dataclass
class Row:
    id: int
    tags: set[str] = dataclasses.field(default_factory=lambda: {"b", "a"})


class Point(NamedTuple):
    x: int
    y: int


Pair = namedtuple("Pair", ["left", "right"])


class Colour(Enum):
    RED = "red"
    BOTH = ("red", "green")


class Level(IntEnum):
    LOW = 1


class Moment(datetime):
    pass


class Text(str):
    pass


class Number(int):
    pass


class Real(float):
    pass


class Own(Mapping[Any, Any]):
    def __getitem__(self, key: Any) -> Any:
        return {"a": 1}[key]

    def __iter__(self) -> Iterator[Any]:
        return iter({"a": 1})

    def __len__(self) -> int:
        return 1


class Broken(Mapping[Any, Any]):
    def __getitem__(self, key: Any) -> Any:
        raise RuntimeError("no")

    __iter__ = __len__ = __getitem__  # type: ignore[assignment]


class Rude:
    secret = "attribute"

    def __str__(self) -> str:
        raise RuntimeError("no")


class Polite:
    secret = "attribute"

    def __str__(self) -> str:
        return "polite" * 10_000


CASES: list[tuple[Any, Any]] = [
    (None, None),
    (True, True),
    (Text("a"), "a"),
    (Number(3), 3),
    (Real(0.5), 0.5),
    (Level.LOW, 1),
    (Colour.RED, "red"),
    (Colour.BOTH, ["red", "green"]),
    (Decimal("0.10"), Decimal("0.10")),
    (Fraction(1, 2), 0.5),
    (datetime(2024, 1, 1), datetime(2024, 1, 1)),
    (date(2024, 1, 1), date(2024, 1, 1)),
    (Moment(2024, 1, 1), Moment(2024, 1, 1)),
    (time(12, 30), "12:30:00"),
    (timedelta(minutes=2), 120.0),
    (UUID(int=1), "00000000-0000-0000-0000-000000000001"),
    (b"caf\xc3\xa9", "café"),
    (b"\xff\x00", "/wA="),
    ((1, (2,)), [1, [2]]),
    (deque([1]), [1]),
    ({2, 1}, [1, 2]),
    (frozenset({"b", 1}), [1, "b"]),
    (Point(1, 2), {"x": 1, "y": 2}),
    (Pair(1, [2]), {"left": 1, "right": [2]}),
    (Row(7), {"id": 7, "tags": ["a", "b"]}),
    (Row, "<class 'tests.graphs.conditions.test_plain.Row'>"),
    (Own(), {"a": 1}),
    (
        {None: 1, True: 2, 3: 4, Colour.RED: 6, Text("t"): 7, 1.5: 8, date(2024, 1, 1): 9},
        {"null": 1, "true": 2, "3": 4, "red": 6, "t": 7, "1.5": 8, "2024-01-01": 9},
    ),
    (
        Finding(name="x", extra=1),  # pyright: ignore[reportCallIssue]
        {"name": "x", "score": Decimal("0.9"), "key": "**********", "extra": 1, "doubled": Decimal("1.8")},
    ),
    (numpy.float32(0.5), 0.5),
    (numpy.array([[1, 2]]), [[1, 2]]),
    (Broken(), "<Broken>"),
    (Rude(), "<Rude>"),
]


@pytest.mark.parametrize(("value", "expected"), CASES, ids=[type(value).__name__ for value, _ in CASES])
def test_plain(value: Any, expected: Any) -> None:
    found = plain(value)
    assert found == expected
    assert type(found) is type(expected)
    if isinstance(expected, dict):
        assert all(type(key) is str for key in found)


def test_attributes_are_never_read() -> None:
    assert plain({"it": Polite()}) == {"it": ("polite" * 10_000)[:10_000]}
    assert not path("it.secret").exists().evaluate({"it": Polite()})
    assert not path("__class__").exists().evaluate(Finding(name="x"))
    assert not path("model_fields").exists().evaluate(Finding(name="x"))
    assert path("score").exists().evaluate(Finding(name="x"))
    assert (path("x") == 1).evaluate(Point(1, 2))
    assert (path("id") == 7).evaluate(Row(7))


def test_what_contains_itself_is_cut_and_what_is_shared_is_not() -> None:
    loop: list[Any] = [1]
    loop.append(loop)
    assert plain(loop) == [1, CUT]
    mapping: dict[str, Any] = {}
    mapping["self"] = mapping
    assert plain_or_cut(mapping, depth=9, items=9) == ({"self": CUT}, True)
    shared = [1]
    assert plain_or_cut([shared, shared], depth=2, items=9) == ([[1], [1]], False)


def test_depth_and_items_are_bounded() -> None:
    deep: Any = 1
    for _ in range(100_000):
        deep = [deep]
    assert plain(deep, depth=3) == [[[CUT]]]
    assert plain_or_cut(list(range(10)), depth=1, items=10) == (list(range(10)), False)
    assert plain_or_cut(list(range(10)), depth=1, items=9) == (list(range(9)), True)
    assert plain_or_cut({"a": [1, 2], "b": 3}, depth=2, items=3) == ({"a": [1, 2]}, True)


@given(results)
@settings(max_examples=120, deadline=None)
def test_plain_data_stays_as_it_is(value: Any) -> None:
    once = plain(value)
    assert repr(plain(once)) == repr(once)
    assert not isinstance(unfold(value), tuple | set | bytes)


def test_a_copy_is_a_copy() -> None:
    value = {"a": [1]}
    copy = plain(value)
    copy["a"].append(2)
    assert value == {"a": [1]}
    assert math.isnan(plain(math.nan))


@attrs.define
class Leaf:
    tags: list[str]


class Bag(dict[str, Any]):
    """A mapping of a user's own."""


class Uncopied(list[int]):
    """Data that cannot be copied."""

    def __deepcopy__(self, _: Any) -> Any:
        raise TypeError("not to be copied")


class Client:
    """Not data."""


FIXED = [None, True, 1, 1.0, 1j, "a", b"a", Decimal(1), Path("a"), date.min, (1, ("a",)), frozenset({1})]


@pytest.mark.parametrize("value", FIXED)
def test_what_cannot_change_is_not_copied(value: Any) -> None:
    assert is_fixed(value)
    assert snapshot(value) is value


@pytest.mark.parametrize(
    "value",
    [
        [1, [2]],
        ([1], 2),
        {1, 2},
        {"a": [1]},
        Bag(a=[1]),
        bytearray(b"a"),
        Row(1),
        Leaf(["a"]),
        Finding(name="a"),
        deque([1], 3),
    ],
)
def test_what_can_change_is_copied_to_its_depth(value: Any) -> None:
    assert not is_fixed(value)
    copied = snapshot(value)
    assert (copied, type(copied)) == (value, type(value))
    assert (copied is value) is isinstance(value, deque)


def test_inner_lists_are_copied_and_what_is_not_data_stays_itself() -> None:
    inner, client, uncopied = [1], Client(), Uncopied([1])
    for outer in ([inner], (inner,), {"a": inner}):
        copied: Any = snapshot(outer)
        inside = copied["a"] if isinstance(copied, dict) else copied[0]
        assert (inside, inside is inner) == ([1], False)
    for value in (client, uncopied, (client,)[0]):
        assert snapshot(value) is value
    assert not is_fixed((client,))
    assert not is_fixed(frozenset({client}))
    endless: list[Any] = []
    endless.append(endless)
    assert snapshot(endless) is endless
