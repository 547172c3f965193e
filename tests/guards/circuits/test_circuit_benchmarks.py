"""The benchmarks measure what they say: in small, and without a look at the clock of the machine."""

import pytest

from benchmarks import fleet_crowd
from benchmarks.fleet_simulation import numbers, simulate

pytestmark = pytest.mark.slow


def test_a_shared_circuit_leaks_less_and_knocks_with_one_hand() -> None:
    shared = numbers(simulate(100, True, 1), True, 0)
    alone = numbers(simulate(100, False, 1), False, 0)
    assert shared["leaked"] * 5 < alone["leaked"]
    assert shared["worst_second_of_knocking"] == 2, "the first look, at most; then one probe at a time"
    assert alone["worst_second_of_knocking"] > 5
    assert alone["store_worst_second"] == 0
    assert shared["herd_worst_second"] < 2 * 100
    assert shared["recovered_after"] < alone["recovered_after"]


@pytest.mark.parametrize(("workers", "lost"), [(6, 0.0), (50, 1.0), (64, 0.0), (64, 1.0), (2000, 0.0)])
def test_a_crowd_keeps_the_promises(workers: int, lost: float) -> None:
    """One probe at a time, open and closed within the intervals, the window's rate, and the load."""
    found = fleet_crowd.simulate(workers, 0.05, lost, 1)
    assert found["opened_before"] == 0
    assert found["opened_after"] < 5
    assert found["leaked_per_worker"] < 5 + 10.5
    assert found["closed_after"] is not None
    assert found["most_probes_at_once"] == 1
    assert (found["share_counted"] == 1) == (workers <= 50)
    # The furthest of some thousand windows, each a sample of about a thousand calls.
    assert found["window_off_by"] <= (0.03 if workers >= 64 else 0.05)
    if not lost:
        assert found["store_worst_second_closed"] <= 200
