"""A limit that finds its number: around calls, blocks and functions, in one process."""

import gc
import pickle
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from prefect_resilience import (
    AdaptiveLimit,
    AdaptiveLimitFullError,
    AttemptTimeout,
    BulkheadFullError,
    resilient,
)
from prefect_resilience.errors.classify.classify import classify
from prefect_resilience.guards.limits import adaptive, line
from tests.guards.limits.hanging import wait_until


class Busy(Exception):
    error_category = "rate_limit"


class Mistake(Exception):
    error_category = "invalid"


@pytest.fixture(autouse=True)
def nothing_is_left(little_to_collect):
    adaptive._numbers.by_key.clear()
    yield
    gc.collect()
    assert line._lines.by_key == {}


def counted(limit):
    """How many calls count: those that ended well, and those that failed with an overload."""
    vegas = number_of(limit)
    return vegas._succeeded, vegas._dropped


def number_of(limit):
    return adaptive._numbers.by_key[limit._key()]


def counting(**options):
    """A limit after its first call, which does not count."""
    limit = AdaptiveLimit(1, **options)
    limit.call(int)
    assert counted(limit) == (0, 0)
    return limit


def fail(error):
    raise error


def test_only_overload_is_a_reason_to_fall():
    for error in (Mistake(), ValueError("no"), KeyboardInterrupt()):
        limit = counting()
        with pytest.raises(type(error)):
            limit.call(fail, error)
        assert counted(limit) == (0, 0)
    for error in (Busy(), AttemptTimeout(3), TimeoutError("late")):
        limit = counting()
        with pytest.raises(type(error)):
            limit.call(fail, error)
        assert counted(limit) == (0, 1)


def test_a_lower_number_interrupts_no_call_and_admits_none():
    limit, finish = AdaptiveLimit(3), threading.Event()
    with ThreadPoolExecutor(5) as pool:
        running = [pool.submit(limit.call, finish.wait, 10) for _ in range(3)]
        wait_until(lambda: taken(limit) == 3)
        at_number(limit, 1)
        waiting = AdaptiveLimit.model_copy(limit, update={"max_wait": 0.05})
        with pytest.raises(AdaptiveLimitFullError):
            waiting.call(int)
        assert taken(limit) == 3
        assert not any(call.done() for call in running)
        finish.set()
        assert all(call.result() for call in running)
    assert limit.call(int) == 0


def test_a_higher_number_lets_the_callers_that_wait_in():
    limit, finish = AdaptiveLimit(1, maximum=10), threading.Event()
    with ThreadPoolExecutor(5) as pool:
        running = [pool.submit(limit.call, finish.wait, 10) for _ in range(4)]
        wait_until(lambda: taken(limit) == 1 and len(the_line(limit).waiting) == 3)
        next(iter(the_line(limit).waiting)).allow(3)
        wait_until(lambda: taken(limit) == 3)
        finish.set()
        assert all(call.result() for call in running)


def test_an_overdue_call_keeps_its_place_and_counts_as_a_timeout():
    limit, finish = counting(max_wait=0), threading.Event()
    slow = resilient(retry=None, timeout=0.05, limits=limit)(finish.wait)
    with ThreadPoolExecutor(1) as pool, pytest.raises(AttemptTimeout):
        pool.submit(slow, 10).result()
    assert counted(limit) == (0, 1)
    with pytest.raises(AdaptiveLimitFullError) as caught:
        limit.call(int)
    assert caught.value.overdue == 1
    finish.set()
    wait_until(lambda: taken(limit) == 0)
    assert limit.call(int) == 0


def test_the_error_says_what_is_full():
    limit, started, finish = AdaptiveLimit(1, max_wait=0), threading.Event(), threading.Event()
    first = threading.Thread(target=limit.call, args=(lambda: started.set() or finish.wait(10),))
    first.start()
    started.wait(10)
    with pytest.raises(AdaptiveLimitFullError, match="the adaptive limit is full: its only place") as caught:
        limit.call(int)
    finish.set()
    first.join()
    assert isinstance(caught.value, BulkheadFullError)
    assert classify(caught.value).category == "unavailable"
    again = pickle.loads(pickle.dumps(caught.value))
    assert str(again) == str(caught.value)
    assert type(again) is AdaptiveLimitFullError
    assert str(BulkheadFullError(None, 2)).startswith("a bulkhead without a name is full")


def test_a_process_remembers_a_bounded_number_of_limits(monkeypatch):
    monkeypatch.setattr(adaptive, "MOST_NUMBERS", 3)
    limits = [AdaptiveLimit() for _ in range(5)]
    for limit in limits:
        limit.call(int)
    assert list(adaptive._numbers.by_key) == [limit._key() for limit in limits[2:]]


def the_line(limit):
    return line._lines.by_key[f"adaptive:{limit._key()}"]


def taken(limit):
    key = f"adaptive:{limit._key()}"
    return line._lines.by_key[key].taken if key in line._lines.by_key else 0


def at_number(limit, number):
    number_of(limit).limit = float(number)
