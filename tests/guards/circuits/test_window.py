"""Windows: totals against a plain reckoning, and what a window may be written as."""

from __future__ import annotations

import copy
import json
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic_core import SchemaValidator, ValidationError
from pydantic_core import core_schema as types

from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.guards.circuits.window import (
    BUCKETS,
    IN_USE,
    WINDOW,
    WindowTotals,
    canonical_window,
    fields,
    least,
    parse_window,
    record,
    record_shared,
    totals,
)

NOW = 1000.0
stored = SchemaValidator(WINDOW)
outcomes = st.sampled_from(["s", "f", "S", "F"])
runs = st.lists(st.tuples(outcomes, st.integers(0, 30)), max_size=4)


def expected(calls: str) -> WindowTotals:
    return WindowTotals(len(calls), sum(c in "fF" for c in calls), sum(c in "SF" for c in calls))


@pytest.mark.parametrize(
    ("written", "size", "kept"),
    [
        (100, 100, 100),
        ("100", 100, 100),
        ("60s", 60.0, "60s"),
        (" 60 s ", 60.0, "60s"),
        ("1m", 60.0, "60s"),
        ("2m", 120.0, "120s"),
        ("500ms", 0.5, "0.5s"),
        ("1.5s", 1.5, "1.5s"),
        (timedelta(minutes=1), 60.0, "60s"),
    ],
)
def test_what_a_window_may_be_written_as(written: object, size: float, kept: object) -> None:
    assert parse_window(written) == size
    assert type(parse_window(written)) is type(size)
    assert canonical_window(written) == kept
    assert canonical_window(canonical_window(written)) == kept


@pytest.mark.parametrize("wrong", [True, 60.0, None, "", "x", "60x", "-60s", "1.5", [], "1e3s"])
def test_what_is_no_window_is_refused_with_the_right_forms(wrong: object) -> None:
    with pytest.raises(ConfigurationError, match='write "60s"'):
        parse_window(wrong)


@given(batches=st.lists(runs, max_size=12), size=st.integers(1, 40))
def test_a_count_window_is_the_last_calls(batches: list[Any], size: int) -> None:
    document, everything = None, ""
    for batch in batches:
        document = record(document, size, batch, 0.0)
        everything = (everything + "".join(o * n for o, n in batch))[-size:]
        assert totals(document, 0.0) == expected(everything)
        assert json.loads(json.dumps(document)) == document
        assert stored.validate_python(document)


@given(
    batches=st.lists(st.tuples(st.floats(0, 30), runs), max_size=15), size=st.sampled_from([0.5, 12.0, 60.0])
)
def test_a_time_window_is_the_last_buckets(batches: list[Any], size: float) -> None:
    document, now = None, 1_000_000.0
    kept: list[tuple[int, str]] = []
    for pause, batch in batches:
        now += pause
        before = copy.deepcopy(document)
        after = record(document, size, batch, now)
        assert document == before, "the argument was changed"
        document = after
        at = int(now * BUCKETS // size)
        kept.append((at, "".join(o * n for o, n in batch)))
        assert totals(document, now) == expected("".join(c for i, c in kept if i > at - BUCKETS))
        assert len(document["buckets"]) <= BUCKETS
        assert json.loads(json.dumps(document)) == document
        assert stored.validate_python(document)


@given(batches=st.lists(st.tuples(st.floats(-100, 100), runs), max_size=12))
def test_a_clock_that_jumps_loses_no_sense(batches: list[Any]) -> None:
    document, now = None, 1_000_000.0
    for jump, batch in batches:
        now += jump
        document = record(document, 60.0, batch, now)
        seen = totals(document, now)
        assert seen.calls == sum(bucket[1] for bucket in document["buckets"])
        assert 0 <= seen.failures <= seen.calls
        assert 0 <= seen.slow <= seen.calls
        assert len(document["buckets"]) <= BUCKETS
    # Nothing stays for ever.
    assert totals(document, now + 1000) == WindowTotals()


@pytest.mark.parametrize("window_of", [1, "1", 10_000, "10ms", "7d"])
def test_the_least_and_the_most_are_still_a_window(window_of: int | str) -> None:
    assert parse_window(window_of) > 0


@pytest.mark.parametrize("refused", [0, -1, 10_001, "0", "9ms", "0s", "8d", timedelta(0)])
def test_what_is_too_little_or_too_much_is_named(refused: int | str | timedelta) -> None:
    with pytest.raises(ConfigurationError) as caught:
        parse_window(refused)
    written = refused if isinstance(refused, int) or str(refused).isdigit() else repr(refused)
    assert str(caught.value).startswith(f"window={written} is not between")


def test_the_least_number_of_calls_is_at_most_a_windows_size() -> None:
    assert (least(10, 4), least(10, 40), least(10, 60.0), least(100, 60.0)) == (4, 10, 10, 100)


def test_two_policies_share_the_window_of_the_first_while_it_counts() -> None:
    first = record_shared(None, 60.0, [("f", 2)], NOW)
    assert (first["seconds"], first["used"]) == (60.0, NOW)
    shared = record_shared(first, 10, [("F", 3)], NOW + 20)
    assert (shared["seconds"], shared["used"], totals(shared, NOW + 20)) == (60.0, NOW, WindowTotals(5, 5, 3))
    assert record_shared(shared, 60.0, [("s", 1)], NOW + 30)["used"] == NOW + 30
    assert record_shared(shared, 10, [], NOW + IN_USE - 1)["seconds"] == 60.0
    own = record_shared(shared, 10, [("s", 1)], NOW + IN_USE)
    assert (own["last"], own["calls"], own["used"]) == (10, 1, NOW + IN_USE)
    # A document of a version that did not store `used`
    assert "last" in record_shared(record(None, 60.0, [], NOW), 10, [], NOW)
    assert "seconds" in record_shared(record(None, 60.0, [], IN_USE - 0.5), 10, [], IN_USE - 0.5)


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"recent": "sf"}, "it has more or fewer outcomes than calls"),
        ({"calls": -1}, "greater than or equal to 0"),
        ({"used": float("nan")}, "finite"),
        ({"used": "1"}, "valid number"),
    ],
)
def test_a_window_that_cannot_be_is_refused(changed: dict[str, Any], says: str) -> None:
    written = record_shared(None, 10, [("s", 3)], NOW)
    assert stored.validate_python({**written, "more": 1}) == written
    with pytest.raises(ValidationError, match=says) as caught:
        stored.validate_python(written | changed)
    assert "None" not in str(caught.value)


def test_fields_are_strict_and_only_the_optional_ones_may_be_missing() -> None:
    number = types.float_schema()
    both = SchemaValidator(fields({"a": number}, {"b": number}))
    assert both.validate_python({"a": 1.0, "b": 2.0, "c": 3.0}) == {"a": 1.0, "b": 2.0}
    assert SchemaValidator(fields({"a": number})).validate_python({"a": 1.0}) == {"a": 1.0}
    assert both.validate_python({"a": 1.0}) == {"a": 1.0}
    for wrong in ({}, {"b": 1.0}, {"a": "1"}, {"a": 1.0, "b": "1"}, {"a": float("inf")}):
        with pytest.raises(ValidationError):
            both.validate_python(wrong)
