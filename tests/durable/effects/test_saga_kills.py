"""Rollbacks that are killed at any line, begun again, or made twice at once: nothing is undone twice."""

from __future__ import annotations

import pytest

from tests.durable.effects.saga_victim import Saga, done, judge, kill_often, start
from tests.durable.effects.saga_victim import Toll as SagaToll
from tests.durable.effects.victim import context

pytestmark = pytest.mark.api


@pytest.mark.timeout(300)
def test_killed_at_any_line_nothing_is_undone_twice_and_nothing_is_forgotten(receiver, shared, api):
    toll = kill_often(receiver, shared, api, kills=6, count=3, asked=3)
    assert toll.mistakes == []
    assert toll.kills >= 6
    assert toll.undone > 0


@pytest.mark.timeout(120)
def test_two_rollbacks_at_once(receiver, shared, api):
    saga = Saga(receiver.url, shared, api, "both", 6)
    done(saga)
    both = context.Barrier(2)
    said = [answer() for answer in [start(saga, both=both), start(saga, both=both)]]
    reports = sorted((one[1] for one in said if one), key=lambda report: len(report.already))
    assert [len(one.compensated) for one in reports] == [6, 0]
    assert [len(one.already) for one in reports] == [0, 6]
    assert receiver.taken == {saga.key(order): 1 for order in range(6)}
    toll = SagaToll()
    judge(receiver, saga, reports[0], toll)
    assert toll.mistakes == []
