"""What leaves the process in events: no secrets, never too much, always JSON."""

import json
from datetime import UTC, datetime
from enum import Enum

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_resilience.telemetry.payloads import LIMIT, fit, size_of

SECRET = "sk-ant-api03-abcdefghijklmnopqrstuvwxyz0123456789"

anything = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats()
    | st.text(max_size=50)
    | st.binary(max_size=20)
    | st.datetimes(),
    lambda inner: (
        st.lists(inner, max_size=8)
        | st.dictionaries(st.text(max_size=8) | st.integers(), inner, max_size=8)
        | st.tuples(inner, inner)
    ),
    max_leaves=60,
)


@settings(max_examples=60, deadline=None)
@given(st.dictionaries(st.text(max_size=10), anything, max_size=10), st.sampled_from([10_000, LIMIT]))
def test_whatever_it_is_it_becomes_json_that_fits(payload, limit):
    made = fit(payload, limit)
    assert size_of(made) <= limit
    text = json.dumps(made, allow_nan=False)
    assert "\\u0000" not in text
    assert json.loads(text) == made


@pytest.mark.parametrize(
    "payload",
    [
        {"message": "x" * 5_000_000},
        {"history": [{"n": n, "message": "y" * 1_000} for n in range(20_000)]},
        {"many": {f"key-{n}": "z" * 100 for n in range(100_000)}},
        {f"key-{n}": {"deep": [["w" * 5_000] * 50] * 50} for n in range(200)},
        {"ж" * 40: "ж" * 90_000},
        {f"key-{n}": "ж" * 180 for n in range(450)},
    ],
)
def test_what_is_too_large_is_cut_and_says_so(payload):
    made = fit(payload)
    assert size_of(made) <= LIMIT
    assert made["truncated"] is True


@pytest.mark.parametrize("at", [0, 19_990, 500_000])
def test_a_secret_at_the_cut_does_not_stay_in_half(at):
    made = fit({"message": "x" * (at - 1) + " " + SECRET + " " + "x" * 100_000})
    assert "abcdef" not in json.dumps(made)
    assert "sk-ant-api03-a" not in json.dumps(made)


def test_what_no_database_takes_is_replaced():
    class Colour(str, Enum):  # noqa: UP042
        RED = "red"

    class Rude:
        def __str__(self):
            raise ValueError

    made = fit(
        {
            "nul": "a\0b",
            "half": "a\ud800b",
            "nan": float("nan"),
            "huge": 2**100,
            "when": datetime(2026, 1, 1, tzinfo=UTC),
            "colour": Colour.RED,
            "rude": Rude(),
            "set": {1},
        }
    )
    assert made == {
        "nul": "a�b",
        "half": "a?b",
        "nan": "nan",
        "huge": str(2**100),
        "when": "2026-01-01T00:00:00+00:00",
        "colour": "red",
        "rude": "<Rude>",
        "set": [1],
    }
