"""Nodes of queries, numbers under traps, times in other zones and nested words, to the letter."""

import time
from collections.abc import Iterator
from datetime import date, datetime, timedelta, timezone
from decimal import Decimal
from typing import Any

import pytest

from prefect_resilience import Condition, path
from prefect_resilience.base.plain import json_value, unfold
from prefect_resilience.graphs.conditions.compare import EvaluationBounds, equal


@pytest.fixture
def in_tokyo(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


def test_an_offset_with_seconds_becomes_utc_wherever_the_machine_is(in_tokyo: None) -> None:
    def written(**offset: int) -> Any:
        return json_value(datetime(2024, 1, 2, 3, tzinfo=timezone(timedelta(**offset))))

    assert written(hours=1, seconds=1) == "2024-01-02T01:59:59+00:00"
    assert written(hours=1, minutes=1) == "2024-01-02T03:00:00+01:01"
    assert written(hours=-5) == "2024-01-02T03:00:00-05:00"
    assert written(hours=0) == "2024-01-02T03:00:00+00:00"
    assert json_value(datetime(2024, 1, 2, 3)) == "2024-01-02T03:00:00"


def test_kinds_that_nothing_compares_with() -> None:
    kinds: list[Any] = [None, True, False, 1, Decimal(0), "x", date(2024, 1, 1), [], {}, [[]], {"a": 1}]
    for place, one in enumerate(kinds):
        for where, other in enumerate(kinds):
            assert equal(one, other, EvaluationBounds(clock=float)) is (place == where), (one, other)
            assert equal([one], [other], EvaluationBounds(clock=float)) is (place == where), (one, other)


def test_what_is_plain_already_is_not_copied_to_be_looked_at() -> None:
    for value in ({"a": 1}, {}, [1], "x", Decimal(1)):
        assert unfold(value) is value
    assert unfold({1: 2}) == {"1": 2}


def test_how_deep_a_condition_is_described() -> None:
    leaf = path("a").exists()
    one = leaf
    several = leaf
    said: list[tuple[str, str]] = []
    for _ in range(3):
        one = Condition(operator="all", conditions=[Condition(operator="not", conditions=[one])])
        several = ~Condition(operator="any", conditions=[several, leaf])
        said.append((one.describe(), several.describe()))
    assert said == [
        ("not (a exists)", "not (a exists or a exists)"),
        ("not (not (a exists))", "not (not (a exists or a exists) or a exists)"),
        ("not (not (…))", "not (not (not (…) or a exists) or a exists)"),
    ]
    both = leaf & leaf
    for _ in range(4):
        both = Condition(operator="any", conditions=[Condition(operator="all", conditions=[both, leaf])])
    assert both.describe() == "((((…) and a exists)) and a exists)"
