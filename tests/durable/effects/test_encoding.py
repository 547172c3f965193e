"""Arguments as JSON: what is equal has one text, what differs has another, and no secret stands in any."""

import dataclasses
import threading
from collections import OrderedDict
from datetime import datetime, time, tzinfo
from decimal import Decimal
from enum import Enum, IntEnum
from functools import cached_property
from types import MappingProxyType
from typing import NamedTuple
from zoneinfo import ZoneInfo

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, ConfigDict, PrivateAttr, Secret, SecretBytes, SecretStr

from prefect_resilience.durable.effects.keys import canonical, digest, loose, typed


def short(value):
    """A name of a case that is the same in every process: no address, and no order of a set."""
    return type(value).__name__


def hasher(text: str) -> str:
    return f"hashed:{digest(text)}"


def typed_text(value):
    return canonical(typed(value, hasher))


def loose_text(value):
    return canonical(loose(value, hasher))


class Colour(Enum):
    RED = "red"


class Level(IntEnum):
    LOW = 1


class Address(BaseModel):
    street: str
    tags: set[str] = set()


class Open(BaseModel):
    model_config = ConfigDict(extra="allow")
    street: str


@dataclasses.dataclass
class Point:
    x: float
    where: Address | None = None


class Pair(NamedTuple):
    a: int
    b: int


class Name(str): ...


class Count(int): ...


class NamelessZone(tzinfo): ...


class Items(list): ...


class Order(BaseModel):
    id: int
    _region: str = PrivateAttr(default="eu")
    _lock: object = PrivateAttr(default_factory=threading.Lock)

    @classmethod
    def of(cls, region):
        made = cls(id=1)
        made._region = region
        return made


@dataclasses.dataclass
class Parcel:
    weight: float
    note: str = dataclasses.field(default="", compare=False)

    @cached_property
    def size(self):
        return self.weight * 2


class Shouted(str):
    def __str__(self):
        return "!"


def with_state(value, **attributes):
    vars(value).update(attributes)
    return value


SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(10**30), 10**30)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text()
    | st.binary(max_size=8)
    | st.decimals(allow_nan=False, allow_infinity=False, places=2)
    | st.dates()
    | st.uuids()
    | st.sampled_from([Colour.RED, Level.LOW, Name("a"), Count(1)])
)
HASHABLE = st.none() | st.booleans() | st.integers() | st.text(max_size=5) | st.dates()
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(HASHABLE, inner, max_size=4)
        | st.frozensets(HASHABLE, max_size=4)
        | st.builds(Point, st.floats(allow_nan=False, allow_infinity=False))
        | st.builds(Address, street=st.text(max_size=5), tags=st.sets(st.text(max_size=3)))
    ),
    max_leaves=12,
)


def same_type(one, other):
    """Whether two values are equal and of the same types throughout."""
    if type(one) is not type(other) or one != other:
        return False
    if isinstance(one, list | tuple):
        return all(map(same_type, one, other))
    if isinstance(one, Decimal):
        return str(one) == str(other)
    if isinstance(one, dict):
        ours, theirs = ({(type(key), key): item for key, item in it.items()} for it in (one, other))
        return ours.keys() == theirs.keys() and all(same_type(ours[key], theirs[key]) for key in ours)
    if isinstance(one, frozenset | set):
        return {(type(item), item) for item in one} == {(type(item), item) for item in other}
    if isinstance(one, Point | Address):
        return same_type(vars(one), vars(other))
    return True


@settings(deadline=None)
@given(VALUES, VALUES)
def test_one_text_means_equal_values_of_one_type(one, other):
    assert (typed_text(one) == typed_text(other)) == same_type(one, other)


BERLIN, TOKYO = ZoneInfo("Europe/Berlin"), ZoneInfo("Asia/Tokyo")


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (datetime(2026, 10, 25, 2, 30), datetime(2026, 10, 25, 2, 30, fold=1)),
        (datetime(2026, 10, 25, 2, 30, tzinfo=BERLIN), datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=BERLIN)),
        (time(2, 30, tzinfo=BERLIN), time(2, 30, tzinfo=TOKYO)),
        (Items([1]), with_state(Items([1]), owner="ann")),
        (with_state(Name("a"), lang="en"), with_state(Name("a"), lang="de")),
        (with_state(Count(1), unit="kg"), with_state(Count(1), unit="g")),
        (hasher, short),
        (Colour, Level),
        (Shouted("a"), Shouted("b")),
        (Order.of("eu"), Order.of("us")),
        (Parcel(1.0, "a"), Parcel(1.0, "b")),
        (OrderedDict(a=1, b=2), OrderedDict(b=2, a=1)),
        (10**5000, 10**5000 + 1),
        (Decimal("1.0"), Decimal("1.00")),
    ],
    ids=short,
)
def test_values_that_print_alike_or_are_called_equal(one, other):
    assert typed_text(one) != typed_text(other)
    assert typed_text([one]) != typed_text([other])


def test_a_private_attribute_without_a_value_does_not_count():
    assert typed_text(Order(id=1)) == typed_text(Order(id=1))
    assert typed_text(with_state(Parcel(1.0), _client=object())) == typed_text(Parcel(1.0))
    with pytest.raises(TypeError, match="a object, which has no value"):
        typed(with_state(Items([1]), client=object()), hasher)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (-0.0, "0.0"),
        ([1, (2,)], '[1,{"is":[2],"type":"tuple"}]'),
        ({"b": 1, "a": 2}, '{"is":[["a",2],["b",1]],"type":"dict"}'),
        (b"x", '{"is":"78","type":"bytes"}'),
        (datetime(2026, 10, 25, 2, 30), '{"is":"2026-10-25T02:30:00","type":"datetime.datetime"}'),
        (
            datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=BERLIN),
            '{"is":"2026-10-25T02:30:00+01:00","type":"datetime.datetime"}',
        ),
        (OrderedDict(a=1, b=2), '{"is":[["a",1],["b",2]],"type":"collections.OrderedDict"}'),
        (Order(id=1), f'{{"is":{{"id":1}},"type":"{__name__}.Order"}}'),
        (Parcel(1.0), f'{{"is":{{"note":"","weight":1.0}},"type":"{__name__}.Parcel"}}'),
        (10**4299, "1" + "0" * 4299),
    ],
    ids=short,
)
def test_encodings_of_version_0_2_stay(value, text):
    """A process of 0.2 may share the ledger: the same effect must have the same key there."""
    assert typed_text(value) == text


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (17, 17.0),
        (-0.0, 0),
        (Decimal("1.234567890123456789012345678901234567890"), "1.23456789012345678901234567890123456789"),
        (Pair(1, 2), [1, 2]),
        (Address(street="x", tags={"b", "a"}), {"tags": ["a", "b"], "street": "x"}),
        (Point(1.0), {"x": 1, "where": None}),
        (Point(1.0), MappingProxyType({"x": "1", "where": None})),
        ({1: "a"}, {"1": "a"}),
        (Colour.RED, "red"),
        # As in 0.2, so that an effect of the other version is found and not sent again.
        (datetime(2026, 10, 25, 2, 30), datetime(2026, 10, 25, 2, 30, fold=1)),
        (Items([1]), with_state(Items([1]), owner="ann")),
        (Order.of("eu"), Order.of("us")),
        (OrderedDict(a=1, b=2), OrderedDict(b=2, a=1)),
    ],
    ids=short,
)
def test_loosely_a_number_is_its_text_and_a_model_its_fields(one, other):
    assert loose_text(one) == loose_text(other)


@pytest.mark.parametrize("encode", [typed, loose])
@pytest.mark.parametrize(
    ("value", "says"),
    [
        (float("nan"), "nan"),
        ([float("inf")], "inf"),
        (Decimal("NaN"), "NaN"),
        (Decimal("sNaN"), "sNaN"),
        ({"a": Decimal("-Infinity")}, "Infinity"),
        (object(), "a object, which has no value"),
        (iter([1]), "list_iterator"),
        (lambda: 1, "a function"),
        (NamelessZone(), "a NamelessZone"),
    ],
    ids=short,
)
def test_what_has_no_value(encode, value, says):
    with pytest.raises((TypeError, ValueError), match=says):
        encode(value, hasher)


def test_the_fields_beyond_a_model_s_own_count():
    assert typed_text(Open(street="x", more=1)) != typed_text(Open(street="x", more=2))
    assert loose_text(Open(street="x", more=1)) == loose_text({"street": "x", "more": "1"})


class Token(BaseModel):
    user: str
    secret: SecretStr


SECRETS = [
    lambda text: SecretStr(text),
    lambda text: SecretBytes(text.encode()),
    lambda text: Secret[str](text),
    lambda text: Token(user="ann", secret=SecretStr(text)),
    lambda text: [{"deep": (SecretStr(text),)}],
    lambda text: Secret[dict]({"password": text}),
]


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("encode", [typed_text, loose_text])
def test_a_secret_counts_and_is_not_told(encode, secret):
    one, other = encode(secret("hunter2")), encode(secret("hunter3"))
    assert one != other
    assert one == encode(secret("hunter2"))
    for text in (one, other):
        assert "hunter" not in text
        assert "*" not in text
        assert "hashed:" in text


def test_a_digest_has_the_length_that_was_asked_for():
    assert len(digest("a")) == 64
    assert len(digest("a", 8)) == 16
    assert digest("\ud800") != digest("\\ud800")
