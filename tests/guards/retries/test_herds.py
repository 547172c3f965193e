"""Many callers who failed at one moment do not come back at one moment."""

from __future__ import annotations

import random
from bisect import bisect_right

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_resilience.errors.taxonomy import ErrorCategory, ErrorInfo
from prefect_resilience.guards.retries.backoff import Backoff
from prefect_resilience.guards.retries.policy import Retry

CALLERS = 200
ROUNDS = 100
AT_THE_CAP = 6
"""The retry from which 1 s, doubled each time, is over 30 s."""

KINDS = [
    Backoff(kind=kind, jitter_kind=jitter_kind, **options)
    for jitter_kind in ("proportional", "full", "equal")
    for kind, options in (
        ("constant", {"initial": 30, "maximum": 30, "jitter": 0.2}),
        ("linear", {"initial": 10, "maximum": 30, "jitter": 0.2}),
        ("exponential", {}),
        ("decorrelated", {}),
        ("schedule", {"delays": (1, 5, 30), "maximum": 30, "jitter": 0.2}),
    )
]
HARD = [
    # All of the interval lies below the minimum, or above the maximum.
    Backoff(minimum=60, maximum=90),
    Backoff(minimum=60, maximum=90, jitter_kind="full"),
    Backoff(minimum=60, maximum=90, jitter_kind="equal"),
    Backoff.decorrelated(60, maximum=30),
    Backoff.decorrelated(5, multiplier=1),
]


def thickest(delays: list[float], width: float = 0.001) -> float:
    """The largest share of `delays` that lies within `width` seconds."""
    delays = sorted(delays)
    most = max(bisect_right(delays, delay + width) - place for place, delay in enumerate(delays))
    return most / len(delays)


def of_callers(backoff: Backoff, seed: int) -> list[float]:
    """100 delays at the cap of each of 200 callers."""
    chance = random.Random(seed)
    delays: list[float] = []
    for _ in range(CALLERS):
        previous = None
        for n in range(AT_THE_CAP + ROUNDS):
            previous = backoff.delay(n, random=chance.random(), previous=previous)
            if n >= AT_THE_CAP:
                delays.append(previous)
    return delays


@pytest.mark.slow
@pytest.mark.parametrize("backoff", [*KINDS, *HARD], ids=lambda b: f"{b.kind}-{b.jitter_kind}-{b.minimum:g}")
def test_no_delays_pile_up_at_a_bound(backoff: Backoff) -> None:
    delays = of_callers(backoff, seed=15)
    assert len(delays) == CALLERS * ROUNDS
    assert backoff.minimum <= min(delays) <= max(delays) <= backoff.maximum
    assert thickest(delays) <= 0.01


@pytest.mark.slow
@pytest.mark.parametrize(
    ("backoff", "asked"),
    [*((backoff, 20.0) for backoff in KINDS), (Backoff(), 1.0), (Backoff(), 300.0)],
    ids=lambda value: f"{value.kind}-{value.jitter_kind}" if isinstance(value, Backoff) else f"{value:g}",
)
def test_callers_who_were_told_when_to_come_back_come_one_by_one(backoff: Backoff, asked: float) -> None:
    policy = Retry(attempts=200, backoff=backoff)
    chance = random.Random(16)
    busy = ErrorInfo.of(ErrorCategory("rate_limit"), "429", retry_after=asked)
    delays: list[float] = []
    for _ in range(CALLERS):
        previous = None
        for attempt in range(1, ROUNDS + 1):
            verdict = policy.decide(busy, attempt, random=chance.random(), previous_delay=previous)
            assert verdict.retry
            delays.append(verdict.delay)
            previous = verdict.delay
    assert min(delays) >= asked
    assert thickest(delays) <= 0.01


@given(
    st.floats(0, 400),
    st.floats(0, 700),
    st.floats(0, 1, exclude_max=True),
    st.floats(0, 1, exclude_max=True),
    st.sampled_from(["proportional", "full", "equal"]),
)
def test_the_draw_never_decides_whether_a_server_s_delay_is_waited_for(
    asked: float, elapsed: float, one: float, other: float, jitter_kind: str
) -> None:
    """It is what the server asked that is compared with the cap and with the time left, not the jitter."""
    backoff = Backoff(initial=0, jitter=0.5, jitter_kind=jitter_kind)
    policy = Retry(backoff=backoff, max_elapsed=600, retry_after_cap=300)
    busy = ErrorInfo.of(ErrorCategory("rate_limit"), "429", retry_after=asked)
    first, second = (policy.decide(busy, 1, elapsed=elapsed, random=chance) for chance in (one, other))
    assert first.retry is second.retry is (asked <= 300 and asked <= 600 - elapsed)
    for verdict in (first, second):
        assert not verdict.retry or asked <= verdict.delay <= max(asked, min(asked * 1.5, 600 - elapsed))


def test_at_the_retry_after_cap_the_jitter_goes_beyond_it() -> None:
    """Else all of those whom a server sends away for just the cap would come back together."""
    asked = ErrorInfo.of(ErrorCategory("rate_limit"), "429", retry_after=300.0)
    assert Retry().decide(asked, 1, random=0.5).delay == pytest.approx(330)
    assert not Retry().decide(asked.model_copy(update={"retry_after": 300.5}), 1, random=0.0).retry
