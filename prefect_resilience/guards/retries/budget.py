"""The retry budget: a token bucket that ends retry storms."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import ClassVar

from pydantic import Field

from prefect_resilience.base.durations import Seconds
from prefect_resilience.base.policy import Policy


class RetryBudget(Policy):
    """Retries may be at most `ratio` of the calls, and `minimum_per_second` are always granted.

    Every call earns `ratio` of a token, each second earns `minimum_per_second`, a retry costs one, and
    no more is saved up than `window` seconds' worth (Finagle's RetryBudget). All policies of a process
    that name the same budget share one bucket.
    """

    by_position: ClassVar[tuple[str, ...]] = ("ratio",)

    ratio: float = Field(default=0.2, ge=0, le=1)
    minimum_per_second: float = Field(default=3.0, ge=0)
    window: Seconds = Field(default=10.0, gt=0)
    name: str = "default"


@dataclass(slots=True)
class Bucket:
    """The tokens of one budget. `now` is in seconds of any clock that only goes forward."""

    budget: RetryBudget
    tokens: float
    at: float
    calls: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @classmethod
    def full(cls, budget: RetryBudget, now: float) -> Bucket:
        return cls(budget, max(1.0, budget.minimum_per_second), now)

    def earn(self) -> None:
        """A first attempt was made. Lock-free: a lost update only makes the budget stricter."""
        self.calls += 1

    def spend(self, now: float) -> bool:
        """Take the token of one retry, or say that there is none."""
        with self.lock:
            budget = self.budget
            passed = max(0.0, now - self.at)
            # What was earned longer than a window ago is spent or lost; calls are taken as evenly spread.
            by_calls = self.calls * budget.ratio * min(1.0, budget.window / max(passed, 1e-9))
            saved = min(self.tokens + passed * budget.minimum_per_second, self._most())
            self.tokens = saved + by_calls
            self.at, self.calls = max(self.at, now), 0
            if self.tokens < 1.0:
                return False
            self.tokens -= 1.0
            return True

    def _most(self) -> float:
        return max(1.0, self.tokens, self.budget.minimum_per_second * self.budget.window)


_buckets: dict[RetryBudget, Bucket] = {}
_buckets_lock = threading.Lock()


def bucket_of(budget: RetryBudget, now: float) -> Bucket:
    """The bucket that this process keeps for the budget."""
    bucket = _buckets.get(budget)
    if bucket is None:
        with _buckets_lock:
            bucket = _buckets.setdefault(budget, Bucket.full(budget, now))
    return bucket
