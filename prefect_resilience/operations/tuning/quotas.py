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
STEP, STEPS = 1.02, 60
MOST_CALLS = 500
"""So many calls of an outage are looked at; they are enough."""

CLEARLY, CLEARLY_IF_SAID = 9.0, 3.0
"""In nats, by how much a quota must be likelier than chance; the second one if most failures say that the
calls were too many (`rate_limit`)."""


@dataclass(frozen=True, slots=True)
class Quota:
    """The calls a second that a service lets through, and the most at once after a quiet time."""

    per_second: float
    burst: float


@dataclass(slots=True)
class QuotaLevel:
    """What is left of a quota; full before the first call."""

    quota: Quota
    level: float
    at: float = -math.inf

    def takes(self, now: float, calls: float = 1.0) -> bool:
        """Whether calls at this moment pass. They count if they do."""
        filled = self.level + (now - self.at) * self.quota.per_second
        self.level, self.at = min(self.quota.burst, filled), now
        # A run with a weight makes several calls at once: all pass or none.
        passes = self.level >= min(calls, self.quota.burst)
        self.level -= calls if passes else 0.0
        return passes


def quota_of(calls: Sequence[ServiceCall]) -> Quota | None:
    """The quota that explains the calls of an outage, ordered by their start; None if chance does as well."""
    some = calls[:MOST_CALLS]
    failed = sum(not call.succeeded for call in some)
    passed = len(some) - failed
    if min(failed, passed) < LEAST_EACH:
        return None
    said = sum(call.category == "rate_limit" for call in some if not call.succeeded)
    seconds = max(1.0, some[-1].start - some[0].start)
    # What passed is at most what was there at once, and what came since.
    tried = [
        Quota(max(1.0, passed - burst) / seconds * STEP**step, burst)
        for burst in BURSTS
        for step in range(-STEPS // 10, STEPS)
    ]
    best, explained = max(((one, _explained(one, some)) for one in tried), key=lambda one: one[1])
    margin = CLEARLY_IF_SAID if 2 * said > failed else CLEARLY
    return best if explained - _likelihood(passed, len(some)) > margin else None


def _explained(quota: Quota, calls: Sequence[ServiceCall]) -> float:
    """How likely the calls are if those for which the quota has enough left succeed with one chance, and the
    others with another one. What passed is taken from it."""
    tried, passed = [0, 0], [0, 0]
    level, at = quota.burst, calls[0].start
    for call in calls:
        level = min(quota.burst, level + (call.start - at) * quota.per_second)
        at = call.start
        has_enough = level >= 1.0
        tried[has_enough] += 1
        passed[has_enough] += call.succeeded
        if call.succeeded:
            level = max(0.0, level - 1.0)
    if passed[1] * tried[0] < passed[0] * tried[1]:
        return -math.inf
    return _likelihood(passed[0], tried[0]) + _likelihood(passed[1], tried[1])


def _likelihood(some: int, of: int) -> float:
    """The logarithm of how likely calls are that are of one kind with one chance."""
    if not of:
        return 0.0
    share = min(1 - 0.5 / of, max(0.5 / of, some / of))
    return some * math.log(share) + (of - some) * math.log(1 - share)
