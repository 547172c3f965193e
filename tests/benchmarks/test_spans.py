"""What spans cost: the looks of a call are counted, and the requirement is judged."""

import pytest

from benchmarks import spans
from benchmarks.spans import Cost, Share


def test_the_looks_for_the_sdk_are_counted() -> None:
    assert spans.looks_of(spans.call) == 1
    spans.failures.append(ConnectionError("refused"))
    assert spans.looks_of(spans.call) > 2
    assert 0 < spans.nanoseconds_of_a_look() < 1_000_000


@pytest.mark.parametrize(("task", "holds"), [(3.0, True), (1.0, False)])
def test_the_requirement_can_be_missed(task: float, holds: bool) -> None:
    assert Share("a task", looks=1, nanoseconds=20, task_microseconds=task).holds is holds


def test_the_cost_of_ours_is_what_is_above_that_of_others() -> None:
    rounds = [dict.fromkeys((spans.WITHOUT, spans.OTHERS, spans.ALL), 0.0)] * spans.WARM_UP_ROUNDS
    measured = [*rounds, {spans.WITHOUT: 1.0, spans.OTHERS: 2.0, spans.ALL: 5.0}]
    assert spans.cost_of("a call", measured) == Cost("a call", 1.0, 2.0, 5.0)
    assert spans.cost_of("a call", measured).ours == 3
