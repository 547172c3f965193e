"""What a failing call costs: the requirements are judged."""

import pytest

from benchmarks import failing_call
from benchmarks.any_call import BARE, OURS, OUTSIDE, STAMINA, TENACITY, Cost
from benchmarks.failing_call import PYBREAKER

pytestmark = pytest.mark.slow


def test_each_requirement_can_be_missed() -> None:
    def costs(retry: float, rejection: float) -> list[Cost]:
        rows = (
            (failing_call.RETRIED, {BARE: 99.0, STAMINA: retry, TENACITY: retry}),
            (failing_call.IN_MEMORY, {BARE: 99.0, PYBREAKER: rejection}),
            (failing_call.IN_SQLITE, {BARE: 99.0, PYBREAKER: rejection}),
        )
        return [Cost(what, "sync", OUTSIDE, {BARE: 1.0, OURS: 2.0}, ratios, 1.0) for what, ratios in rows]

    assert [bar.holds for bar in failing_call.requirements(costs(3.0, 0.5))] == [True] * 4
    assert [bar.holds for bar in failing_call.requirements(costs(3.1, 0.51))] == [False] * 4
