"""Whether two values are the same, by the strict equality of conditions."""

from __future__ import annotations

from typing import Any

from prefect_resilience.graphs.conditions.bounds import Bounds
from prefect_resilience.graphs.conditions.compare import equal
from prefect_resilience.graphs.conditions.errors import ConditionError

STEPS = 5_000_000


def same(one: Any, other: Any, steps: int = STEPS) -> bool:
    """Whether two plain values are the same, through and through; those too large to compare are not."""
    try:
        return equal(one, other, Bounds(steps=steps))
    except ConditionError:
        return False
