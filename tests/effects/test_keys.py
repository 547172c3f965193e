"""Keys: the same for equal parameters, in whatever process; and what has none."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from datetime import date, datetime, timezone
from decimal import Decimal
from enum import Enum, IntEnum
from pathlib import PurePosixPath
from uuid import UUID

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, SecretStr

from prefect_resilience import ConfigurationError
from prefect_resilience.effects import Effect
from prefect_resilience.effects.keys import canonical_json, digest_of, effect_key, task_name

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


class Colour(Enum):
    RED = "red"


class Level(IntEnum):
    LOW = 1


class Address(BaseModel):
    street: str
    tags: set[str] = set()


@dataclasses.dataclass
class Point:
    x: float
    where: Address | None = None


@pytest.mark.parametrize(
    ("value", "text"),
    [
        ({"b": 1, "a": [True, None]}, '{"a":[true,null],"b":1}'),
        (1.0, "1"),
        (-0.0, "0"),
        (0.1, "0.1"),
        (1e300, "1e+300"),
        (2**63 + 1, "9223372036854775809"),
        (float(2**54), "1.8014398509481984e+16"),
        ("é\n", '"é\\n"'),
        ((1, 2), "[1,2]"),
        ({3, 1, 2}, "[1,2,3]"),
        ({1: "a"}, '{"1":"a"}'),
        ({Colour.RED: 1}, '{"red":1}'),
        (Level.LOW, "1"),
        (b"\x00\xff", '"00ff"'),
        (datetime(2026, 11, 1, tzinfo=timezone.utc), '"2026-11-01T00:00:00Z"'),
        (date(2026, 11, 1), '"2026-11-01"'),
        (Decimal("1.50"), '"1.50"'),
        (UUID(int=1), '"00000000-0000-0000-0000-000000000001"'),
        (PurePosixPath("/a"), '"/a"'),
        (SecretStr("hunter2"), '"**********"'),
        (Point(1.0, Address(street="x", tags={"b", "a"})), '{"where":{"street":"x","tags":["a","b"]},"x":1}'),
    ],
)
def test_canonical_json(value, text):
    assert canonical_json(value) == text


@given(JSON)
def test_what_went_through_json_has_the_same_key(value):
    assert digest_of(json.loads(json.dumps(value))) == digest_of(value)


@given(JSON)
def test_the_text_is_the_value_s_own(value):
    """It can be read back, so that two values with one text are equal."""
    assert json.loads(canonical_json(value)) == json.loads(json.dumps(value))


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (1, True),
        (0, False),
        (None, "null"),
        (None, 0),
        ("", None),
        (1, "1"),
        (1.5, "1.5"),
        ([1], ["1"]),
        ([], {}),
        ([1], 1),
        ([[1], 2], [1, [2]]),
        ([1, 2], [2, 1]),
        ({"a": 1}, [["a", 1]]),
        ({"a": None}, {}),
        ({"a": 1, "b": 2}, {"a": 2, "b": 1}),
        (0.3, 0.1 + 0.2),
        (2**53, 2**53 + 1),
        (float(2**53), 2**53 + 1),
        ("é", "e\u0301"),
        ("\ud800", "\\ud800"),
        ('"', '\\"'),
    ],
    ids=repr,
)
def test_distinct_values_have_distinct_texts(one, other):
    assert canonical_json(one) != canonical_json(other)
    assert digest_of(one) != digest_of(other)


@pytest.mark.parametrize(
    ("value", "says"),
    [
        (float("nan"), "nan"),
        ([float("inf")], "inf"),
        (object(), "a object, which is no JSON"),
        (iter([1]), "list_iterator"),
        (lambda: 1, "a function"),
        (Point, "a type"),
        ({1: "a", "1": "b"}, "two names"),
        ({(1, 2): "a", "[1,2]": "b"}, "two names"),
    ],
)
def test_what_is_no_json(value, says):
    with pytest.raises((TypeError, ValueError), match=says):
        canonical_json(value)


def test_nesting_has_an_end():
    value: list = []
    value.append(value)
    with pytest.raises(ValueError, match="levels deep"):
        canonical_json(value)


def key(effect: Effect, parameters: dict, batch_id: str = "b") -> str:
    return effect_key(effect, "shop.send", parameters, batch_id)


def test_a_template():
    assert key(Effect(key="invoice:{order_id}"), {"order_id": 17}) == "invoice:17"
    assert key(Effect(key="{batch_id}/{to.street}"), {"to": Address(street="x")}) == "b/x"
    assert key(Effect(key="an {x}"), {"x": "ä%\n"}) == "an%20%C3%A4%25%0A"
    assert len(key(Effect(key="{x}"), {"x": "y" * 5_000})) == 200


def test_distinct_texts_stay_distinct_in_a_header():
    names = ["a b", "a%20b", "ä", "%C3%A4", "a", "\ud800"]
    keys = {key(Effect(key="{x}"), {"x": name}) for name in names}
    assert len(keys) == len(names)
    assert all(made.isascii() and made.isprintable() and " " not in made for made in keys)


def test_the_default_is_the_task_the_parameters_and_the_batch():
    plain = key(Effect(), {"a": 1, "b": [2.0]})
    assert plain.startswith("shop.send:")
    assert plain == key(Effect(), {"b": [2], "a": 1})
    others = [
        key(Effect(), {"a": 2, "b": [2.0]}),
        key(Effect(), {"a": 1, "b": [2.0]}, "other"),
        key(Effect(scope="node"), {"a": 1, "b": [2.0]}),
        effect_key(Effect(), "shop.post", {"a": 1, "b": [2.0]}, "b"),
    ]
    assert len({plain, *others}) == 5


def test_a_parameter_that_is_no_json_is_one_sentence():
    with pytest.raises(
        ConfigurationError, match="parameter 'client' is a object, which is no JSON; write a key"
    ):
        key(Effect(), {"client": object()})
    assert key(Effect(key="k:{n}"), {"client": object(), "n": 1}) == "k:1"
    with pytest.raises(ConfigurationError, match="there is no parameter 'm'"):
        key(Effect(key="k:{m}"), {"n": 1})


def test_another_process_makes_the_same_key():
    """Sets have another order there: their hashes are seeded."""
    code = (
        "from prefect_resilience.effects.keys import digest_of;"
        "print(digest_of({'tags': {'a', 'b', 'c', 'd', 'e'}, 'n': 1.0}))"
    )
    made = {
        subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout
        for _ in range(2)
    }
    assert made == {digest_of({"n": 1, "tags": ["a", "b", "c", "d", "e"]}) + "\n"}


def test_what_a_function_is_called():
    assert task_name(test_a_template) == "test_keys.test_a_template"
    assert task_name(print) == "print"

    class Callable:
        def __call__(self): ...

    assert task_name(Callable()).endswith("Callable")
    cell: dict = {}
    exec(compile("def f(): ...", "/tmp/ipykernel_1/123.py", "exec"), cell)
    assert task_name(cell["f"]) == "f"


def test_parameters_that_are_nested_too_deeply_only_all_together():
    deep = []
    for _ in range(98):
        deep = [deep]
    assert canonical_json(deep)
    with pytest.raises(ConfigurationError, match="has no key: one of its parameters is nested more than 100"):
        effect_key(Effect(), "m.send", {"deep": deep}, "b")
