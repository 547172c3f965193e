"""Processes that are killed at any line, restarted, or run twice at once: nothing is sent twice."""

from __future__ import annotations

import pytest
from prefect.server.api.server import SubprocessASGIServer
from prefect.settings import PREFECT_API_URL

from prefect_resilience.effects import batch_status
from tests.effects.victim import Orders, kill_often, start


@pytest.fixture
def api() -> str:
    return PREFECT_API_URL.value() or SubprocessASGIServer._instances[None].api_url


@pytest.mark.timeout(300)
@pytest.mark.parametrize("verify", [False, True])
def test_killed_at_any_line_nothing_is_sent_twice(receiver, shared, api, verify):
    toll = kill_often(receiver, shared, api, kills=10, verify=verify)
    assert toll.mistakes == []
    assert toll.kills >= 10
    if verify:
        assert toll.doubts == 0
        assert set(receiver.taken.values()) == {1}


def test_two_processes_at_once(receiver, shared, api):
    receiver.says(200)
    orders = Orders(receiver.url, shared, api, "both", 8, verify=False)
    waiting = [start(orders) for _ in range(2)]
    said = [answer() for answer in waiting]
    assert all(one is not None for one in said)
    outcomes = [sorted(pair) for pair in zip(*(one[1] for one in said if one), strict=True)]
    assert outcomes == [["Completed", "Replayed"]] * 8
    assert receiver.taken == {f"both.{order}": 1 for order in range(8)}
    assert {effect.attempts for effect in batch_status("both").effects} == {1}
