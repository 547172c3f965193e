"""A service that limits its callers: it lets so many calls a second through, and rejects the others. Pure.

Whether the calls of an outage met a quota is a question of likelihoods: a token bucket that is filled at one
rate says for each call whether it had to succeed. It explains an outage if it does so much better than a
share of the calls that fails by chance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from prefect_resilience.operations.tuning.calls import ServiceCall

LEAST_EACH = 3
"""So many calls at least must have succeeded, and so many failed."""

BURSTS = (1.0, 2.0, 5.0, 10.0)
STEP, STEPS = 1.08, 40
CLEARLY, CLEARLY_IF_SAID = 6.0, 2.0
"""In nats, by how much a quota must be likelier than chance; the second one if most failures say that the
calls were too many (`rate_limit`)."""


@dataclass(frozen=True, slots=True)
class Quota:
    """The calls a second that a service lets through, and the most at once after a quiet time."""

    per_second: float
    burst: float


@dataclass(slots=True)
class Bucket:
    """What is left of a quota; full before the first call."""

    quota: Quota
    level: float
    at: float = -math.inf

    def takes(self, now: float, calls: float = 1.0) -> bool:
        """Whether calls at this moment pass. They count if they do."""
        filled = self.level + (now - self.at) * self.quota.per_second
        self.level, self.at = min(self.quota.burst, filled), now
        # Of several calls at once, as one run stands for, all pass or none.
        passes = self.level >= min(calls, self.quota.burst)
        self.level -= calls if passes else 0.0
        return passes


def quota_of(calls: Sequence[ServiceCall]) -> Quota | None:
    """The quota that explains the calls of an outage, ordered by their start; None if chance does as well."""
    failed = sum(not call.succeeded for call in calls)
    passed = len(calls) - failed
    if min(failed, passed) < LEAST_EACH:
        return None
    said = sum(call.category == "rate_limit" for call in calls if not call.succeeded)
    middle = passed / max(1.0, calls[-1].start - calls[0].start)
    tried = [
        Quota(middle * STEP**step, burst) for burst in BURSTS for step in range(-STEPS // 2, STEPS // 2 + 1)
    ]
    best, right = max(((one, _right(one, calls)) for one in tried), key=lambda one: one[1])
    margin = CLEARLY_IF_SAID if 2 * said > failed else CLEARLY
    return best if _likelihood(right, len(calls)) - _likelihood(passed, len(calls)) > margin else None


def _right(quota: Quota, calls: Sequence[ServiceCall]) -> int:
    """The calls of which the quota says rightly whether they passed. What passed is taken from it."""
    right, level, at = 0, quota.burst, calls[0].start
    for call in calls:
        level = min(quota.burst, level + (call.start - at) * quota.per_second)
        at = call.start
        right += (level >= 1.0) == call.succeeded
        if call.succeeded:
            level = max(0.0, level - 1.0)
    return right


def _likelihood(some: int, of: int) -> float:
    """The logarithm of how likely calls are that are of one kind with one chance."""
    share = min(1 - 0.5 / of, max(0.5 / of, some / of))
    return some * math.log(share) + (of - some) * math.log(1 - share)
