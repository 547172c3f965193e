"""A service that is back is let in soon, also one that usually fails a few calls; one that is down is not."""

from statistics import quantiles

import pytest

from benchmarks.circuit_recovery import asked, kept_out
from prefect_resilience.guards.circuits.model import CircuitPolicy

RUNS = 150
OUTAGE = 20.0

DEFAULT = CircuitPolicy()
ADAPTIVE = CircuitPolicy(adaptive=True)


@pytest.mark.parametrize("policy", [DEFAULT, ADAPTIVE], ids=["default", "adaptive"])
@pytest.mark.parametrize("usually", [0.0, 0.1, 0.2, 0.3])
def test_nine_times_of_ten_it_is_closed_within_a_minute(policy: CircuitPolicy, usually: float) -> None:
    times = kept_out(policy, usually, OUTAGE, RUNS)
    # From the first failure on, not only from the service's return.
    assert OUTAGE + quantiles(times, n=10)[8] <= 60


def test_one_failed_probe_would_keep_such_a_service_out_for_minutes() -> None:
    """Which is what `probe_calls=success_threshold` says, for those who want it."""
    strict = CircuitPolicy(probe_calls=2)
    assert quantiles(kept_out(strict, 0.3, OUTAGE, RUNS), n=10)[8] > 60


@pytest.mark.parametrize(
    ("down", "calls"),
    [
        # Six open it; the first half-open period costs two, and each of nine more one.
        (1.0, 18.5),
        (0.9, 28.0),
    ],
)
def test_a_service_that_stays_down_for_an_hour_is_left_alone(down: float, calls: float) -> None:
    assert asked(DEFAULT, down, 3600, 60) <= calls
