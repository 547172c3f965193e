"""At most so many calls in a period: the arithmetic as such, and in one process."""

import asyncio
import math
import threading
import time
from bisect import bisect_left
from fractions import Fraction

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_resilience import resilient
from prefect_resilience.guards.limits import line
from prefect_resilience.guards.limits.guarding import RateLimitedError
from prefect_resilience.guards.limits.line import FRESH, Pace, after_call, wait_for
from prefect_resilience.guards.limits.rate import RateLimit


@pytest.fixture(autouse=True)
def nothing_is_left():
    line._lines.rates.clear()
    yield
    assert line._lines.by_key == {}


# -- the arithmetic: with fractions, so that not a single call is rounded away

steps = st.lists(
    st.one_of(
        st.just(Fraction(0)),
        st.fractions(0, 2, max_denominator=50),
        st.fractions(100, 10**6, max_denominator=3),  # the machine was suspended
    ),
    min_size=1,
    max_size=60,
)
paces = st.builds(
    lambda calls, per, burst: (calls, per, Pace(per / calls, burst)),
    st.integers(1, 20),
    st.fractions(Fraction(1, 10), 5, max_denominator=10),
    st.integers(1, 8),
)


def calls_made(pace_, steps, patient):
    """When calls are made by callers who arrive at these steps; patient ones wait, others go away."""
    now, state, made = Fraction(0), FRESH, []
    for step in steps:
        now += step
        wait = wait_for(pace_, state, now)
        if wait > 0 and not patient:
            continue
        now += Fraction(wait)
        assert wait_for(pace_, state, now) == 0
        made.append(now)
        state = after_call(pace_, state, now)
    return made


def most_within(times, span):
    return max(
        (index - bisect_left(times, end - span + Fraction(1, 10**9)) + 1 for index, end in enumerate(times)),
        default=0,
    )


@pytest.mark.requirement("003.24")
@settings(max_examples=150, deadline=None)
@given(paces, steps, st.booleans())
def test_never_more_than_the_limit_in_any_window(written, steps, patient):
    calls, per, pace_ = written
    made = calls_made(pace_, steps, patient)
    assert most_within(made, per) <= calls + pace_.burst - 1
    for span in (per / 3, per * 2, per * 7):
        assert most_within(made, span) <= pace_.burst - 1 + math.ceil(span / pace_.interval)


@settings(max_examples=100, deadline=None)
@given(paces, st.integers(1, 30))
def test_the_rate_is_used_to_the_full(written, count):
    _, _, pace_ = written
    made = calls_made(pace_, [Fraction(0)] * count, patient=True)
    assert made[-1] == max(0, count - pace_.burst) * pace_.interval


# -- in one process


def answer():
    return 1


async def async_answer():
    return 1


def calls_through(way, limit):
    """Makes a call of a guarded function, in one of the ways to guard it."""
    if way == "async":
        made = resilient(limits=limit, retry=None)(async_answer)
        return lambda: asyncio.run(made())
    if way == "block":

        def block():
            for attempt in resilient(limits=limit, retry=None):
                with attempt:
                    return 1
            return None

        return block
    if way == "limit":
        return lambda: limit.call(answer)
    return resilient(limits=[limit] if way == "list" else limit, retry=None)(answer)


@pytest.mark.requirement("003.24")
@pytest.mark.parametrize("way", ["function", "async", "list", "block", "limit"])
@pytest.mark.parametrize("burst", [1, 3])
def test_a_guarded_call_beyond_the_rate_is_refused(way, burst):
    call = calls_through(way, RateLimit(2, per="1h", burst=burst, max_wait=0, name=f"hourly-{way}-{burst}"))
    assert [call() for _ in range(burst)] == [1] * burst
    for _ in range(2):
        with pytest.raises(RateLimitedError) as refused:
            call()
        assert 1700 < refused.value.retry_after <= 1800
    other = calls_through(way, RateLimit(2, per="1h", burst=burst, max_wait=0, name=f"other-{way}-{burst}"))
    assert other() == 1


def test_threads_and_event_loops_share_the_rate_in_one_line():
    limit, times = RateLimit(100, name="shared"), []

    async def many():
        await asyncio.gather(*(RateLimit(100, name="shared").acall(note) for _ in range(10)))

    def note():
        times.append(time.monotonic())

    threads = [threading.Thread(target=asyncio.run, args=(many(),)) for _ in range(2)]
    threads += [threading.Thread(target=limit.call, args=(note,)) for _ in range(10)]
    began = time.monotonic()
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert len(times) == 30
    assert max(times) - began >= 29 * 0.01 - 0.005


def test_a_wait_that_is_known_to_be_too_long_is_refused_at_once():
    limit = RateLimit(1, per="1m", burst=2, max_wait=30, name="slow")
    assert [limit.call(int), limit.call(int)] == [0, 0]
    began = time.monotonic()
    with pytest.raises(
        RateLimitedError, match=r"rate limit 'slow' allows 1 call in 60 s: .* in \d\d\.\d\d s"
    ) as caught:
        limit.call(int)
    assert time.monotonic() - began < 10
    assert 30 < caught.value.retry_after <= 60
    assert (caught.value.name, caught.value.calls, caught.value.per) == ("slow", 1, 60)


async def test_a_cancelled_caller_leaves_no_gap():
    limit = RateLimit(20)
    await limit.acall(asyncio.sleep, 0)
    waiting = [asyncio.create_task(limit.acall(asyncio.sleep, 0)) for _ in range(1000)]
    await asyncio.sleep(0.01)
    for task in waiting:
        task.cancel()
    await asyncio.gather(*waiting, return_exceptions=True)
    began = time.monotonic()
    await limit.acall(asyncio.sleep, 0)
    assert time.monotonic() - began < 25  # not the fifty seconds of those who went away


def test_what_is_as_if_fresh_is_forgotten(monkeypatch):
    monkeypatch.setattr(line, "MOST_KEYS", 10)
    busy = RateLimit(1, per="1h", max_wait=0)
    busy.call(int)
    for _ in range(50):
        RateLimit(10_000).call(int)
        time.sleep(0.0002)
    assert len(line._lines.rates) < 20
    with pytest.raises(RateLimitedError):
        busy.call(int)
