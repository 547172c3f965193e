"""Delay schedules: the promised formula, and laws that hold for every schedule."""

from __future__ import annotations

import random
from bisect import bisect_right
from datetime import timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.errors.taxonomy import ErrorCategory, ErrorInfo
from prefect_resilience.guards.circuits.model import DEFAULT_POLICY, CircuitPolicy
from prefect_resilience.guards.retries.backoff import LONGEST, Backoff
from prefect_resilience.guards.retries.policy import DEFAULT_RETRY, NO_RETRY, Retry

fractions = st.floats(0, 1, exclude_max=True)
seconds = st.floats(0, 1000)


@st.composite
def backoffs(draw):
    kind = draw(st.sampled_from(["none", "constant", "linear", "exponential", "decorrelated", "schedule"]))
    low, high = sorted([draw(seconds), draw(seconds)])
    options = {
        "initial": draw(seconds),
        "multiplier": draw(st.floats(1, 1000)),
        "minimum": low,
        "maximum": high,
        "jitter": draw(st.floats(0, 1)),
        "jitter_kind": draw(st.sampled_from(["proportional", "full", "equal"])),
    }
    if kind == "schedule":
        options["delays"] = tuple(draw(st.lists(seconds, min_size=1, max_size=5)))
    return Backoff(kind=kind, **options)


@pytest.mark.requirement("000.16")
@given(backoffs(), st.integers(0, 10_000), fractions, st.none() | seconds)
def test_every_delay_stays_between_its_bounds(backoff, n, random, previous):
    assert backoff.minimum <= backoff.delay(n, random=random, previous=previous) <= backoff.maximum


@given(st.floats(0.001, 10), st.floats(1, 10), st.integers(0, 500), st.integers(0, 500))
def test_without_jitter_exponential_never_gets_shorter(initial, multiplier, n, more):
    backoff = Backoff.exponential(initial, multiplier=multiplier, jitter=0, maximum=1e6)
    assert backoff.delay(n) <= backoff.delay(n + more)


@pytest.mark.requirement("000.17")
@given(st.integers(0, 20), fractions, st.floats(0, 1))
def test_proportional_jitter_stays_within_its_fraction(n, random, jitter):
    backoff = Backoff.exponential(1, jitter=jitter, maximum=LONGEST)
    assert abs(backoff.delay(n, random=random) - 2**n) <= 2**n * (jitter + 1e-9)


def test_the_ready_made_policies_are_what_validation_makes():
    assert (Retry(), Retry(attempts=1)) == (DEFAULT_RETRY, NO_RETRY)
    assert CircuitPolicy() == DEFAULT_POLICY


@pytest.mark.requirement("003.03")
def test_the_defaults_are_one_second_doubling_to_thirty():
    """By default a delay is in the middle of what it may be; at the cap that is 24 to 30 s."""
    assert [Backoff.exponential().delay(n) for n in range(7)] == pytest.approx([1, 2, 4, 8, 16, 27, 27])
    assert [Backoff.exponential(jitter=0).delay(n) for n in range(7)] == [1, 2, 4, 8, 16, 30, 30]


@pytest.mark.requirement("000.16", "002.02")
@pytest.mark.parametrize(
    ("backoff", "expected"),
    [
        (Backoff.none(), [0, 0, 0]),
        (Backoff.constant(3), [3, 3, 3]),
        (Backoff.linear(1), [1, 2, 3]),
        (Backoff.linear(1, maximum=2), [1, 2, 2]),
        (Backoff.exponential(0.1, multiplier=3, jitter=0), [0.1, 0.3, 0.9]),
        (Backoff.exponential(0, jitter=0), [0, 0, 0]),
        (Backoff.schedule([1, 5, 30]), [1, 5, 30, 30]),
        (Backoff.exponential(timedelta(milliseconds=500), jitter=0), [0.5, 1, 2]),
        (Backoff.exponential(1, minimum=3, jitter=0), [3, 3, 4]),
    ],
)
def test_each_kind(backoff, expected):
    assert [backoff.delay(n) for n in range(len(expected))] == pytest.approx(expected)


@pytest.mark.requirement("002.02")
@pytest.mark.parametrize("kind", ["none", "constant", "linear", "exponential", "decorrelated"])
def test_a_kind_by_its_name_is_the_same_as_the_kind_in_python(kind):
    assert Backoff.model_validate(kind) == getattr(Backoff, kind)() == Backoff.model_validate({"kind": kind})


def test_full_and_equal_jitter_draw_from_their_ranges():
    full = Backoff.exponential(8, jitter_kind="full")
    equal = Backoff.exponential(8, jitter_kind="equal")
    assert (full.delay(0, random=0), full.delay(0, random=0.5)) == (0, 4)
    assert (equal.delay(0, random=0), equal.delay(0, random=0.5)) == (4, 6)
    assert Backoff.exponential(8, jitter=0, jitter_kind="full").delay(0, random=0.1) == 8


def test_decorrelated_grows_from_the_delay_before():
    backoff = Backoff.decorrelated(1, maximum=100)
    assert backoff.delay(0, random=0.0) == 1
    assert backoff.delay(0, random=0.5) == 2
    assert backoff.delay(5, random=0.5, previous=9) == 14
    assert backoff.delay(5, random=0.5, previous=90) == 50.5, "between 1 and 100, the maximum"
    assert Backoff.decorrelated(1, jitter=0).delay(0, random=0.1) == 3


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"initial": -1}, "initial=-1"),
        ({"jitter": 1.5}, "jitter=1.5"),
        ({"multiplier": 0.5}, "multiplier=0.5"),
        ({"minimum": 10, "maximum": 5}, "write a minimum below it"),
        ({"kind": "schedule"}, "Backoff.schedule"),
        ({"kind": "exponential", "delays": [1]}, "Backoff.schedule"),
        ({"kind": "fibonacci"}, "fibonacci"),
        ({"maximun": 3}, "did you mean 'maximum'"),
        ({"initial": float("inf")}, "initial"),
    ],
)
def test_mistakes_are_one_sentence(options, says):
    with pytest.raises(ConfigurationError, match=says) as caught:
        Backoff(**options)
    assert "\n" not in str(caught.value)


def test_a_backoff_is_frozen():
    with pytest.raises(ValueError, match="frozen"):
        Backoff().initial = 3
    with pytest.raises(ValueError, match="Backoff"):
        Backoff.model_validate(3)


CALLERS = 200
ROUNDS = 50
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
    """50 delays at the cap of each of 200 callers."""
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
