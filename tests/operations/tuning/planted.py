"""Planted worlds: each has one bad number, or none; and the best numbers of a world, by brute force."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from tests.operations.tuning.worlds import GOOD_RETRY, HOUR, TrueService, World, outages


def number_of(value: Any) -> float:
    """The number in a value: that of a backoff is its first delay."""
    return float(value["initial"] if isinstance(value, dict) else value)  # pyright: ignore


def factor_off(value: Any, best: Sequence[Any]) -> float:
    """By which factor a number is off the nearest of the best ones."""
    mine, others = number_of(value), [number_of(one) for one in best]
    return min(max(mine, other) / min(mine, other) for other in others)


NEVER_OPENS = {"name": "service", "failure_threshold": 200, "failure_rate": 1.0, "minimum_calls": 10_000}


TOO_LONG = World(
    "a timeout far too long", TrueService(hang=0.01, blip=0.003), {"retry": GOOD_RETRY, "timeout": 120.0}
)
NEVER_HELP = World(
    "attempts that never help",
    TrueService(stuck=0.05, blip=0.005),
    {"retry": {"attempts": 8, "backoff": {"kind": "exponential", "initial": 1.0}}, "timeout": 3.0},
)
NEVER_OPEN = World(
    "a circuit that never opens",
    TrueService(
        median=10.0,
        blip=0.01,
        stuck=0.01,
        troubles=outages([9, 21, 40, 55, 70, 90, 101, 118, 130, 150], 1500.0, "hang"),
    ),
    {"retry": GOOD_RETRY, "timeout": 40.0, "circuit": NEVER_OPENS, "fallback": ["other"]},
    runs=20_000,
)
TOO_LOW = World(
    "a limit that is too low",
    TrueService(median=4.0, blip=0.003),
    {"retry": GOOD_RETRY, "timeout": 30.0, "limits": {"max_concurrent": 1, "max_wait": 10.0}},
    runs=6000,
    seconds=8 * HOUR,
)
WORSE = World(
    "retries that make an outage worse",
    TrueService(blip=0.002, capacity=2.5, troubles=outages([0.5 + at for at in range(10)], 40.0)),
    {"retry": {"attempts": 7, "backoff": {"kind": "constant", "initial": 0.5}}, "timeout": 3.0},
    runs=14_000 * 10 // 4,
    seconds=10 * HOUR,
)
HEALTHY = World(
    "healthy", TrueService(blip=0.01), {"retry": GOOD_RETRY, "timeout": 3.0, "circuit": {"name": "service"}}
)
GUARDED = World(
    "outages behind a good circuit",
    TrueService(blip=0.005, troubles=outages([12, 40, 66, 90, 120, 150], 600.0, "hang")),
    {
        "retry": {"attempts": 2, "backoff": {"kind": "exponential", "initial": 0.5}},
        "timeout": 2.0,
        # With the longer openings that are the default, one in five runs of the fallback is for nothing.
        "circuit": {"name": "service", "open_for": 60.0, "open_backoff": 1.0},
        "fallback": ["other"],
    },
    runs=20_000,
)
HOPELESS = World(
    "failures that no policy can help",
    TrueService(stuck=0.03, blip=0.01),
    {"retry": {"attempts": 2, "backoff": {"kind": "exponential", "initial": 0.5}}, "timeout": 3.0},
)


@dataclass(frozen=True)
class Planted:
    """A world with one bad number, the option that it is in, and the values that are best by force
    (`python -m benchmarks.tuning_planted` finds them again)."""

    world: World
    option: str
    best: tuple[float, ...]


PLANTED = (
    Planted(TOO_LONG, "timeout", (0.93, 1.2, 1.4, 1.8, 2.3, 2.8)),
    Planted(NEVER_HELP, "retry.attempts", (2,)),
    Planted(NEVER_OPEN, "circuit.failure_threshold", (5, 7)),
    Planted(TOO_LOW, "limits.max_concurrent", (3, 4, 5, 6)),
    Planted(WORSE, "retry.backoff", (4.0, 8.0)),
)
NOTHING_TO_CHANGE = (HEALTHY, GUARDED, HOPELESS)
