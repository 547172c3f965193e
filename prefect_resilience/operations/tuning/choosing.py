"""The choice of a value by cross-validation over parts of the period: only what is clearly better. Pure.

For each part the value is chosen on the other parts, and what it would have gained is counted in the part
that the choice did not see. The sum over the parts is what to expect of a change.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from prefect_resilience.operations.tuning.losses import interval

LEAST_DAYS = 5
NEARLY = 0.99
"""The value nearest to the present one that gains at least this share of the most is chosen."""

ALMOST_WORTH = 0.5
"""Without one part of the period a gain may be this share of what is worth a change."""

LEAST_BLOCKS_BETTER = 3
HARMLESS = 0.01
"""A change that loses at most this share of its gain in other blocks may have most of its gain in one
block."""

ONE_EVENT = 0.6
"""Otherwise, if one block has more than this share of the gain, the gain is that of one event."""

UNSURE = 0.02


@dataclass(frozen=True)
class Choice:
    """The place of the chosen value, and its gain in parts that the choice did not see, with its interval."""

    place: int
    gain: float
    low: float
    high: float


def fold_of(block: int, blocks: int, days: float) -> int:
    """The part of a block: its day in a period of several days, else the block itself."""
    if days < LEAST_DAYS:
        return block
    return int(block * min(days, 28) / blocks)


def choose(
    gains: Sequence[Sequence[float]], worth: float, days: float, seed: int, nearly: float = NEARLY
) -> Choice | None:
    """The value to change to, or None. gains: by value and block, in seconds, the nearest value first.

    worth: the gain from which a change is worth its trouble. nearly: the share of the most gain with which
    the value nearest to the present one is chosen.
    """
    if not gains:
        return None
    blocks = len(gains[0])
    folds = [fold_of(block, blocks, days) for block in range(blocks)]
    held_out = [0.0] * blocks
    for fold in set(folds):
        place = _modest(
            [sum(g for g, f in zip(one, folds, strict=True) if f != fold) for one in gains], worth, nearly
        )
        if place is not None:
            for block in range(blocks):
                if folds[block] == fold:
                    held_out[block] = gains[place][block]
    place = _modest([sum(one) for one in gains], worth, nearly)
    gain = sum(held_out)
    if place is None or gain < worth:
        return None
    low, high = interval(held_out, seed)
    lost = -sum(value for value in held_out if value < 0)
    if lost <= HARMLESS * gain and sum(value > 0 for value in held_out) > 1:
        return Choice(place, gain, low, high)
    better = sorted((value for value in held_out if value > 0), reverse=True)
    if len(better) < LEAST_BLOCKS_BETTER or better[0] > ONE_EVENT * sum(better):
        return None
    if interval(held_out, seed, low=UNSURE)[0] <= 0:
        return None
    return Choice(place, gain, low, high)


def _modest(sums: Sequence[float], worth: float, nearly: float) -> int | None:
    """The first value that gains nearly the most; None if none gains enough."""
    most = max(sums)
    if most <= 0 or most < worth * ALMOST_WORTH:
        return None
    return next(place for place, gain in enumerate(sums) if gain >= nearly * most)
