"""Policies with different windows under one name: each has all calls, and the strictest decides."""

from __future__ import annotations

import itertools
import logging
import random
from typing import Any

import pytest

from prefect_resilience import CircuitBreaker, CircuitPolicy
from prefect_resilience.guards.circuits.document import MOST_WINDOWS, other_sizes, read, windows_of
from prefect_resilience.guards.circuits.machine import CircuitDocument, Force, Record, Reset, new, step
from tests.guards.circuits.bench import NOW
from tests.guards.circuits.conftest import HandStore

LENIENT: dict[str, Any] = {"failure_threshold": 1000}


def policy(**options: Any) -> CircuitPolicy:
    return CircuitPolicy(**{**LENIENT, **options})


def fed(document: CircuitDocument, outcome: Any, by: CircuitPolicy, now: float) -> CircuitDocument:
    return step(document, Record(document["generation"], ((outcome, 1),)), now, by)[0]


def opened_after(policies: list[CircuitPolicy], share: float, calls: int = 600) -> int | None:
    """The number of calls after which the circuit opened. The policies take turns."""
    draw, document = random.Random(7), new()
    for number, by in zip(range(calls), itertools.cycle(policies), strict=False):
        document = fed(document, "f" if draw.random() < share else "s", by, NOW + number / 10)
        assert len(windows_of(document)) <= MOST_WINDOWS
        if document["state"] == "open":
            return number + 1
    return None


@pytest.mark.parametrize(
    "windows",
    [
        ("60s", "120s"),
        (10, "60s"),
        (10, 100),
        ("10s", "24h"),
        ("60s", 20, "5m"),
        ("500ms", 50, "90s", 7),
        tuple(range(20, 30)),
    ],
    ids=str,
)
def test_they_open_it_as_one_would(windows: tuple[Any, ...]) -> None:
    alone = opened_after([policy(window="60s")], 0.75)
    found = opened_after([policy(window=window) for window in windows], 0.75)
    assert alone is not None
    assert found is not None
    assert found <= alone + 2 * len(windows)
    assert opened_after([policy(window=window) for window in windows], 0.05) is None


@pytest.mark.parametrize(
    ("strict", "lenient"),
    [
        ({"window": 10, "failure_rate": 0.2}, {"window": "60s", "failure_rate": 0.9}),
        ({"window": "2m", "minimum_calls": 5}, {"window": "60s", "minimum_calls": 500}),
        ({"window": "60s", "failure_threshold": 2}, {"window": 100, "failure_threshold": 50}),
        ({"window": 30, "adaptive": True}, {"window": "60s", "failure_rate": 1.0}),
        ({"window": "60s", "failure_rate": 0.2}, {"window": "60s", "failure_rate": 0.9}),
    ],
    ids=str,
)
def test_the_stricter_one_decides(strict: dict[str, Any], lenient: dict[str, Any]) -> None:
    both = [policy(**lenient), policy(**strict)]
    alone = opened_after([policy(**strict)], 0.6)
    assert alone is not None
    for order in (both, both[::-1]):
        found = opened_after(order, 0.6)
        assert found is not None
        assert found <= alone + 10


def test_each_window_has_every_call() -> None:
    minute, ten = policy(window="60s", failure_rate=1.0), policy(window=10, failure_rate=1.0)
    document = new()
    for number in range(8):
        document = fed(document, "s", (minute, ten)[number % 2], NOW)
    assert [one["calls"] for one in windows_of(document)] == [8, 7]
    assert (other_sizes(document, 60.0, NOW), other_sizes(document, 10, NOW)) == ([10], [60.0])
    assert other_sizes(document, 60.0, NOW + 3600) == []


def test_a_window_alone_is_stored_as_before() -> None:
    document = fed(fed(new(), "s", policy(), NOW), "f", policy(), NOW)
    assert set(document) == set(new())
    assert set(document["window"]) == {"seconds", "buckets", "calls", "failures", "slow"}


@pytest.mark.parametrize("event", [Force("closed", "by hand"), Reset()])
def test_no_window_outlives_a_change_of_state(event: Any) -> None:
    document = new()
    for window in ("60s", 10, 100):
        document = fed(document, "f", policy(window=window), NOW)
    kept = document["windows"]
    document, _ = step(document, event, NOW, policy())
    assert set(document) == set(new())
    # As version 0.2.0 leaves it, which does not know them
    assert windows_of({**document, "windows": kept}) == []
    again = fed({**document, "windows": kept}, "s", policy(window=10), NOW)
    assert [(one["calls"], one["failures"]) for one in windows_of(again)] == [(1, 0)]


def test_version_0_2_beside_this_one() -> None:
    """It replaces `window` if that is not its own, and leaves `windows` as they are."""
    document = fed(new(), "f", policy(window="120s"), NOW)
    theirs = {"seconds": 60.0, "buckets": [[int(NOW // 5), 1, 1, 0]], "calls": 1, "failures": 1, "slow": 0}
    document = read({**document, "window": theirs})
    for _ in range(5):
        document = fed(document, "f", policy(window="120s", failure_rate=1.0, minimum_calls=100), NOW)
    assert document["window"]["calls"] == 6
    assert [one["calls"] for one in document["windows"]] == [5]


@pytest.mark.parametrize(
    "damaged", [None, 1, [{}], [{"last": 3}], ["window"], [{"used": 1, "generation": 1}]]
)
def test_damaged_windows_cost_nothing_else(damaged: Any) -> None:
    document = fed(fed(new(), "f", policy(), NOW), "f", policy(window=10), NOW)
    assert read(document) == document
    assert read({**document, "windows": damaged}) == {
        name: part for name, part in document.items() if name != "windows"
    }


def test_processes_of_both_policies(store: HandStore, caplog: pytest.LogCaptureFixture) -> None:
    """The issue's case: 600 calls, of which 75 % fail, through the code's circuit and an operator's block."""
    code = CircuitBreaker("service", window="60s", store=store, sync_interval=1e-9, **LENIENT)
    block = code.beside(policy(window="120s", sync_interval=1e-9))
    with caplog.at_level(logging.WARNING, "prefect_resilience.circuits"):
        for number in range(600):
            breaker = (code, block)[number % 2]
            if number % 4:
                breaker.record_failure(ConnectionError("down"))
            else:
                breaker.record_success()
    assert {code.state, block.state} == {"open"}
    warnings = [one.getMessage() for one in caplog.records if "window" in one.getMessage()]
    assert sorted(warnings) == [
        "circuit 'service' has a window of 120 s here and of 60 s in other policies: each policy judges the "
        "calls of all processes by its own window, so the strictest one opens the circuit",
        "circuit 'service' has a window of 60 s here and of 120 s in other policies: each policy judges the "
        "calls of all processes by its own window, so the strictest one opens the circuit",
    ]
