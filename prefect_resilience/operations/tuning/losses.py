"""What a period costs under a policy, in one number per block of time, and how sure a difference is. Pure.

The unit is one second that one run takes. Everything else has a price in it, which depends on the goal.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from prefect_resilience.operations.tuning.plain_runs import DEAD, FAILED, FALLBACK, SECONDS
from prefect_resilience.operations.tuning.replaying import ReplaySums
from prefect_resilience.operations.tuning.report import TuningGoal
from prefect_resilience.operations.tuning.scenario import Scenario

LOAD_AT_MOST = 1.5
"""A load at return of up to this many times the usual one costs nothing."""

RESAMPLES = 400


@dataclass(frozen=True)
class Prices:
    """What an event costs, in seconds of a run's time.

    failed: a run that failed. fallback: a run that a fallback answered. dead: a failed call in an outage, and
    each call too many at its end.
    """

    failed: float = 300.0
    fallback: float = 60.0
    dead: float = 1.0


PRICES: dict[TuningGoal | None, Prices] = {
    None: Prices(),
    "recover": Prices(failed=1800.0, fallback=300.0),
    "latency": Prices(failed=60.0, fallback=5.0),
    "load": Prices(dead=15.0),
}


def losses(scenario: Scenario, result: ReplaySums, prices: Prices) -> list[float]:
    """The loss of each block, over all tasks of the service."""
    total = [0.0] * scenario.blocks
    for blocks in result.sums:
        for block, sums in enumerate(blocks):
            total[block] += sums[SECONDS] + sums[FAILED] * prices.failed
            total[block] += sums[FALLBACK] * prices.fallback + sums[DEAD] * prices.dead
    for place, number in enumerate(result.returned):
        span, usual = scenario.returns[place]
        if span:
            block = scenario.block_at(scenario.model.outages[place].end)
            total[block] += max(0.0, number - LOAD_AT_MOST * usual) * prices.dead
    return total


def task_losses(result: ReplaySums, prices: Prices) -> list[float]:
    """The loss of each task over the period, without the load at the ends of outages."""
    return [
        sum(
            sums[SECONDS]
            + sums[FAILED] * prices.failed
            + sums[FALLBACK] * prices.fallback
            + sums[DEAD] * prices.dead
            for sums in blocks
        )
        for blocks in result.sums
    ]


def interval(gains: Sequence[float], seed: int, low: float = 0.05, high: float = 0.95) -> tuple[float, float]:
    """The interval of a sum over blocks, by a bootstrap over the blocks."""
    chance = Random(f"interval-{seed}")
    sums = sorted(sum(chance.choices(gains, k=len(gains))) for _ in range(RESAMPLES))
    return sums[int(low * (RESAMPLES - 1))], sums[int(high * (RESAMPLES - 1))]


def timeout_gains(scenario: Scenario, task: int, timeout: float, prices: Prices) -> list[float]:
    """By block what a shorter timeout saves in the calls of a task: the rest of each failed call that
    took longer. A success that took longer counts as a failed run."""
    gained = [0.0] * scenario.blocks
    for run in scenario.runs:
        if run.task == task:
            for _, call in run.met:
                if call.seconds > timeout:
                    saved = -prices.failed if call.succeeded else call.seconds - timeout
                    gained[run.block] += saved * run.weight
    return gained
