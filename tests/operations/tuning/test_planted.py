"""Worlds with one bad number: the advice finds it, and its number is close to the best one."""

from __future__ import annotations

import pytest

from prefect_resilience.operations.tuning.advice import advise
from tests.operations.tuning.planted import NOTHING_TO_CHANGE, PLANTED, Planted, factor_off
from tests.operations.tuning.worlds import World, live

QUICK = [planted for planted in PLANTED if planted.world.runs <= 5000]
LARGE = [planted for planted in PLANTED if planted.world.runs > 6000]


def found(planted: Planted, seed: int) -> None:
    report = advise(live(planted.world, seed)[0])
    mine = {one.option: one for one in report.advice}
    assert planted.option in mine, report
    one = mine[planted.option]
    assert factor_off(one.better, planted.best) <= 1.5, one
    assert one.evidence["low"] > 0
    assert one.why.endswith(".")


@pytest.mark.parametrize("planted", QUICK, ids=lambda planted: planted.world.name)
def test_a_planted_number_is_found(planted: Planted) -> None:
    found(planted, 2)


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize("planted", LARGE, ids=lambda planted: planted.world.name)
def test_a_planted_number_is_found_in_a_large_record(planted: Planted) -> None:
    found(planted, 1)


@pytest.mark.parametrize(
    "world", [world for world in NOTHING_TO_CHANGE if world.runs <= 6000], ids=lambda world: world.name
)
def test_nothing_is_advised_where_nothing_is_wrong(world: World) -> None:
    assert advise(live(world, 1)[0]).advice == ()


def test_what_a_limit_held_up_is_not_judged() -> None:
    world = next(planted.world for planted in PLANTED if planted.option == "limits.max_concurrent")
    report = advise(live(world, 1)[0])
    assert report.advice == ()
    assert "a limit held it up" in report.not_judged[0].why


@pytest.mark.long
@pytest.mark.timeout(600)
def test_a_good_circuit_is_left_as_it_is() -> None:
    guarded = next(world for world in NOTHING_TO_CHANGE if world.runs > 6000)
    assert advise(live(guarded, 1)[0]).advice == ()
