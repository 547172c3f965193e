"""How much is replayed: bounded for the whole period, and the same figures with less work."""

from __future__ import annotations

from typing import Any

import pytest

from prefect_resilience.guards.circuits.model import CircuitPolicy
from prefect_resilience.operations.tuning.calls import services_of
from prefect_resilience.operations.tuning.comparing import figures_of
from prefect_resilience.operations.tuning.effort import MOST_ATTEMPTS, MOST_OF_SERVICE, efforts_for
from prefect_resilience.operations.tuning.options import policy_of
from prefect_resilience.operations.tuning.record import RecordedTask
from prefect_resilience.operations.tuning.replay_circuit import ReplayedCircuit
from prefect_resilience.operations.tuning.replaying import PeriodReplay
from prefect_resilience.operations.tuning.scenario import Scenario, scenario_of
from prefect_resilience.operations.tuning.service import fitted
from tests.operations.tuning.test_service import attempt, period_of, run, task_of
from tests.operations.tuning.worlds import DAY, GOOD_RETRY, TrueService, World, live, outages

SERVICE = TrueService(hang=0.002, blip=0.05, stuck=0.01, troubles=outages([3, 8, 13, 19], 400.0, "half-hang"))
CIRCUITS: list[dict[str, Any]] = [
    {},
    {"failure_threshold": 2},
    {"failure_threshold": 20, "minimum_calls": 5, "window": "300s"},
    {"failure_rate": 0.2, "window": 100},
    {"failure_threshold": 1, "minimum_calls": 50},
]


@pytest.fixture(scope="module")
def scenarios() -> tuple[Scenario, Scenario]:
    """All runs replayed one by one, and plain ones passed over."""
    options = {"retry": GOOD_RETRY, "timeout": 5.0, "circuit": {"name": "service"}}
    period, _ = live(World("plain", SERVICE, options, runs=4000, seconds=DAY), 1)
    [record] = services_of(period)
    model = fitted(record, period.until)
    whole = scenario_of(record, model, period.since, period.until, none_plain=True)
    return whole, scenario_of(record, model, period.since, period.until, least_timeouts={0: 1.0})


@pytest.mark.parametrize("circuit", CIRCUITS, ids=str)
def test_passing_over_plain_runs_changes_no_figure(
    scenarios: tuple[Scenario, Scenario], circuit: dict[str, Any]
) -> None:
    policy = policy_of({"retry": GOOD_RETRY, "timeout": 5.0, "circuit": {"name": "service", **circuit}})
    whole, quick = (PeriodReplay(one, [policy], 1).run() for one in scenarios)
    assert quick.attempts < 0.8 * whole.attempts
    assert quick.opened == whole.opened > 0
    all_of_them, mine = (
        figures_of(one, result, 0) for one, result in zip(scenarios, (whole, quick), strict=True)
    )
    assert mine.model_dump() == pytest.approx(all_of_them.model_dump(), rel=1e-9)


def test_a_success_older_than_the_window_still_ends_a_row_of_failures() -> None:
    """The machine is told late, and not of calls older than the window: the row must not go on."""
    circuit = ReplayedCircuit(CircuitPolicy(failure_threshold=3, open_for=10.0))

    def calls(*outcomes: tuple[float, bool]) -> None:
        for moment, succeeds in outcomes:
            admitted = circuit.admit(moment)
            assert admitted is not None
            if succeeds:
                circuit.succeeded(moment, admitted, 1)
            else:
                circuit.failed(moment, admitted, 1, True, None)

    calls((0.0, False), (1.0, False), (2.0, False), (13.0, True), (14.0, True))
    # After a full recovery the machine knows of one failure.
    calls(*((20.0 + second, True) for second in range(10)), (31.0, False), (32.0, True))
    calls((200.0, False), (201.0, False), (202.0, False))
    assert circuit.opened == 2
    assert circuit.document["opened_at"] == 202.0


def failing(name: str, number: int) -> RecordedTask:
    return task_of(name, [run(at, attempt(float(at), "timeout")) for at in range(number)])


def test_the_effort_is_bounded_for_all_services() -> None:
    services = services_of(period_of(*(failing(f"task-{at}", 2000) for at in range(30))))
    efforts = efforts_for(services)
    assert sum(one.attempts for one in efforts) == pytest.approx(MOST_ATTEMPTS)
    assert all(one.most < 200 or one.most < MOST_OF_SERVICE / 10 for one in efforts)


def test_small_services_leave_their_effort_to_a_large_one() -> None:
    services = services_of(period_of(failing("large", 5000), *(failing(f"{at}", 3) for at in range(50))))
    large = efforts_for(services)[[one.name for one in services].index("large")]
    assert large.attempts > 0.8 * MOST_ATTEMPTS
    assert large.most > 1000
