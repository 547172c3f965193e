"""The replay of what ran is what ran, and of other numbers what the same worlds do under them."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from prefect_resilience.operations.tuning.record import RecordedTask, policy_of, with_value
from prefect_resilience.operations.tuning.service_calls import ServiceCalls, calls_of
from prefect_resilience.operations.tuning.simulation import PeriodReplay
from tests.operations.tuning.planted import GUARDED, HOPELESS, NEVER_HELP, TOO_LONG
from tests.operations.tuning.test_calls import run
from tests.operations.tuning.worlds import BEGINS, TrueService, Truth, World, live, outages

COUNTED = ("runs", "hit", "recovered", "failed", "fallback", "seconds", "waited", "calls", "dead_calls")
HANGING = World(
    "hanging",
    TrueService(median=1.0, blip=0.01, troubles=outages([9, 30, 50, 70, 100, 130], 1500.0, "hang")),
    {
        "retry": {"attempts": 3, "backoff": {"kind": "exponential", "initial": 1.0}},
        "timeout": 20.0,
        "circuit": {"name": "service", "failure_threshold": 40, "minimum_calls": 10_000},
    },
)


known: dict[str, tuple[ServiceCalls, Truth]] = {}


def service_of(world: World) -> tuple[ServiceCalls, Truth]:
    """What a world's calls were, lived once for all tests."""
    if world.name not in known:
        period, truth = live(world, 1)
        known[world.name] = calls_of(list(period.tasks), period.until), truth
    return known[world.name]


def figures(
    service: ServiceCalls, options: Any, number: int = 2, until: float = BEGINS + 7e5
) -> dict[str, float]:
    """The mean of some replays."""
    sums = [
        PeriodReplay(service, [policy_of(options)], np.array([0.0, until]), seed, (seed + 0.5) / number).run()
        for seed in range(number)
    ]
    return dict(zip(COUNTED, np.mean(sums, axis=0).sum(axis=(0, 1)).tolist(), strict=True))


@pytest.mark.parametrize("world", [TOO_LONG, NEVER_HELP, HOPELESS, HANGING], ids=lambda world: world.name)
def test_what_ran_is_replayed_as_it_was(world: World) -> None:
    service, truth = service_of(world)
    for name, value in figures(service, world.options).items():
        assert value == pytest.approx(getattr(truth, name), rel=0.03, abs=3.0), name


@pytest.mark.parametrize(
    ("world", "option", "value"),
    [
        (TOO_LONG, "timeout", 3.0),
        (NEVER_HELP, "retry.attempts", 2),
        (HOPELESS, "retry.attempts", 1),
        (HANGING, "circuit.failure_threshold", 5),
        (HANGING, "retry.attempts", 1),
        (HANGING, "timeout", 8.0),
        (replace(GUARDED, runs=5_000), "circuit.open_for", 120.0),
    ],
    ids=lambda value: value.name if isinstance(value, World) else str(value),
)
def test_other_numbers_do_what_they_really_do(world: World, option: str, value: Any) -> None:
    options = with_value(world.options, option, value)
    replayed = figures(service_of(world)[0], options)
    _, truth = live(world, 1, options)
    for name in COUNTED:
        assert replayed[name] == pytest.approx(getattr(truth, name), rel=0.1, abs=20.0), name


def quiet(*runs: Any) -> ServiceCalls:
    return calls_of([RecordedTask("ask", tuple(runs))], 1e5)


ALWAYS = {"retry": {"attempts": 2, "backoff": {"kind": "constant", "initial": 1.0}}, "timeout": 5.0}


def test_a_slow_success_is_as_slow_when_a_shorter_timeout_repeats_it() -> None:
    runs = [run(100.0 * number, "", seconds=4.0 if number % 10 == 0 else 0.1) for number in range(300)]
    short = figures(quiet(*runs), with_value(ALWAYS, "timeout", 2.0), until=1e5)
    assert (short["failed"], short["calls"]) == (30, 330)
    assert short["seconds"] == pytest.approx(27.0 + 30 * 5.0, rel=0.1)
