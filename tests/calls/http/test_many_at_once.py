"""200 threads and 2,000 coroutines through one client, some of them cancelled: nothing is left behind."""

from __future__ import annotations

import asyncio

import pytest

from tests.calls.http.many import PLACES, Numbers, coroutines, threads

SECONDS = [
    pytest.param(3.0, marks=pytest.mark.slow),
    pytest.param(60.0, marks=[pytest.mark.long, pytest.mark.timeout(300)]),
]


def check(numbers: Numbers) -> None:
    print(numbers.told())
    assert numbers.calm, "each connection is idle, no request is queued, and no call is overdue"
    assert numbers.places == PLACES
    assert numbers.files_after <= numbers.files_before
    assert numbers.connections_left == 0
    assert numbers.outcomes["200"] > 100


@pytest.mark.parametrize("seconds", SECONDS)
def test_threads(seconds):
    check(threads(seconds))


@pytest.mark.parametrize("seconds", SECONDS)
def test_coroutines(seconds):
    numbers = asyncio.run(coroutines(seconds))
    check(numbers)
    assert len(numbers.latest) > 100
    latest = sorted(numbers.latest)
    assert latest[len(latest) // 2] < 0.1, "a cancelled request is gone at once, as far as the loop is free"
