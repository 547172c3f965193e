"""200 threads and 2,000 coroutines through one client, some of them cancelled: nothing is left behind."""

from __future__ import annotations

import asyncio

import pytest

from tests.calls.http.many import Numbers, run

LONG = [pytest.mark.long, pytest.mark.timeout(300)]


def check(numbers: Numbers) -> None:
    assert numbers.calm, "each connection is idle, no request is queued, and no call is overdue"
    assert numbers.files_after <= numbers.files_before
    assert numbers.connections_left == 0
    assert numbers.outcomes["200"] > 100


@pytest.mark.parametrize(
    ("seconds", "many"),
    [pytest.param(1.0, 50, marks=pytest.mark.slow), pytest.param(60.0, 200, marks=LONG)],
)
def test_threads(seconds, many):
    check(asyncio.run(run(False, seconds, many)))


@pytest.mark.parametrize(
    ("seconds", "many"),
    [pytest.param(1.0, 200, marks=pytest.mark.slow), pytest.param(60.0, 2_000, marks=LONG)],
)
def test_coroutines(seconds, many):
    numbers = asyncio.run(run(True, seconds, many))
    check(numbers)
    assert len(numbers.latest) > 50
    latest = sorted(numbers.latest)
    assert latest[len(latest) // 2] < 0.5, "a cancelled request is gone at once, as far as the loop is free"
