"""Hedged sync calls: in threads, with places in limits; and delays that are percentiles."""

import asyncio
import threading
import time
from functools import partial

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_resilience import AttemptTimeout, Bulkhead, Hedge, Timeout, resilient
from prefect_resilience.guards.limits import hedge as hedges
from prefect_resilience.guards.limits import line
from prefect_resilience.guards.limits.quantiles import FORGETS, LatencySketch
from prefect_resilience.guards.timeouts.threads import overdue_calls
from tests.guards.limits.hanging import wait_until


@pytest.fixture(autouse=True)
def nothing_is_left():
    hedges._all_measured.of.cache_clear()
    yield
    wait_until(lambda: overdue_calls() == 0 and not line._lines.by_key)


class Script:
    """Plays an outcome for each call: waits for an event or so many seconds, then answers or raises."""

    def __init__(self, *script):
        self.script, self.calls, self._lock = script, 0, threading.Lock()

    def __call__(self):
        with self._lock:
            wait, answer = self.script[min(self.calls, len(self.script) - 1)]
            self.calls += 1
        wait.wait(10) if isinstance(wait, threading.Event) else time.sleep(wait)
        if isinstance(answer, BaseException):
            raise answer
        return answer


def test_a_quick_answer_needs_no_other_call():
    script = Script((0, "first"))
    assert Hedge(5).call(script) == "first"
    assert script.calls == 1


def test_a_slow_one_is_overtaken_and_counts_as_overdue_until_it_ends():
    finish = threading.Event()
    script = Script((finish, "first"), (0, "second"))
    assert Hedge(0.02).call(script) == "second"
    assert overdue_calls() == 1
    finish.set()
    wait_until(lambda: overdue_calls() == 0)


def test_the_first_may_still_win_and_max_bounds_the_others():
    finish = threading.Event()
    script = Script((0.2, "first"), (finish, "other"))
    assert Hedge(0.02, max=2).call(script) == "first"
    assert script.calls == 3
    finish.set()


def test_a_failure_starts_the_next_at_once_and_the_first_error_is_raised():
    assert Hedge(60).call(Script((0, KeyError("a")), (0, "second"))) == "second"
    with pytest.raises(KeyError, match="a") as caught:
        Hedge(60).call(Script((0, KeyError("a")), (0, ValueError("b"))))
    assert any("hedged call 2 failed too" in note for note in caught.value.__notes__)
    same = KeyError("same")
    with pytest.raises(KeyError) as caught:
        Hedge(60).call(Script((0, same)))
    assert not getattr(same, "__notes__", [])


def test_the_loser_keeps_its_place_until_it_ends():
    room, finish = Bulkhead(2, max_wait=0, name="room"), threading.Event()
    script = Script((finish, "first"), (0, "second"))
    guarded = resilient(retry=None, limits=room, hedge=Hedge(0.02))(lambda: script())
    assert guarded() == "second"
    assert line.overdue_places("bulkhead:room") == 1
    assert line.in_line("bulkhead:room") == 1
    assert room.call(int) == 0
    finish.set()
    wait_until(lambda: line.in_line("bulkhead:room") == 0)


def test_a_loser_that_was_the_other_call_keeps_only_its_own_place():
    room, finish = Bulkhead(2, max_wait=0, name="room"), threading.Event()
    script = Script((0.1, "first"), (finish, "second"))
    guarded = resilient(retry=None, limits=room, hedge=Hedge(0.02))(lambda: script())
    assert guarded() == "first"
    assert line.in_line("bulkhead:room") == 1
    finish.set()
    wait_until(lambda: line.in_line("bulkhead:room") == 0)


def test_no_other_call_without_a_free_place():
    script = Script((0.1, "first"), (0, "second"))
    guarded = resilient(retry=None, limits=Bulkhead(1), hedge=Hedge(0.01))(lambda: script())
    assert guarded() == "first"
    assert script.calls == 1


def test_an_attempt_that_is_over_makes_no_more_calls():
    finish = threading.Event()
    script = Script((finish, "late"))
    slow = resilient(retry=None, timeout=Timeout(0.05, mode="thread"), hedge=Hedge(0.15))(lambda: script())
    with pytest.raises(AttemptTimeout):
        slow()
    time.sleep(0.4)
    assert script.calls == 1
    finish.set()


def test_abandoned_calls_are_bounded(monkeypatch):
    monkeypatch.setattr(hedges, "MOST_OVERDUE", 2)
    finish, quick = threading.Event(), Hedge(0.01)
    made = []

    def read(number):
        made.append(number)
        if made.count(number) == 1 and number < 3:
            finish.wait(10)
        elif number == 3:
            time.sleep(0.1)
        return number

    assert [quick.call(read, number) for number in (10, 0, 1)] == [10, 0, 1]
    assert made.count(0) == 2
    assert quick.call(read, 3) == 3
    assert made.count(3) == 1
    finish.set()


def test_a_percentile_waits_for_its_warm_up_and_follows_what_is_measured(monkeypatch):
    monkeypatch.setattr(hedges, "WARM_UP", 20)
    hedge, script = Hedge("p90"), Script((0.002, "x"))
    for _ in range(20):
        hedge.call(script)
    assert script.calls == 20
    slow = Script((0.3, "slow"), (0, "quick"))
    measured = hedges._all_measured.of(repr(script))
    assert 0.001 < measured.begins(hedge) < 0.2
    script.script, script.calls = slow.script, 0
    assert hedge.call(script) == "quick"
    assert measured.sketch.seen == 21


def test_a_percentile_bounds_the_load_that_it_adds(monkeypatch):
    monkeypatch.setattr(hedges, "WARM_UP", 20)
    hedge, made = Hedge("p90"), []

    def read():
        made.append(1)
        time.sleep(0.001 if len(made) <= 20 else 0.01)  # everything became slow

    for _ in range(60):
        hedge.call(read)
    assert len(made) - 60 <= 0.2 * 60


def test_each_function_and_limit_is_measured_by_itself(monkeypatch):
    monkeypatch.setattr(hedges, "MOST_MEASURED", 3)
    measured = hedges._AllMeasured().of
    monkeypatch.setattr(hedges._all_measured, "of", measured)

    def calls(*names):
        return [measured(name).calls for name in names]

    hedge = Hedge("p50")
    hedge.call(int)
    hedge.call(partial(str, "x"))
    hedge.within(int, [Bulkhead(1, name="llm:{kind}")], {"kind": "a"})()
    assert calls("int", "str", "int|llm:a") == [1, 1, 1]
    hedge.call(float)
    assert calls("str", "int|llm:a", "float", "int") == [1, 1, 1, 0]


def test_async_calls_may_have_a_percentile_too(monkeypatch):
    monkeypatch.setattr(hedges, "WARM_UP", 20)
    hedge, calls = Hedge("p95"), []

    async def read():
        calls.append(1)
        await asyncio.sleep(5 if len(calls) == 21 else 0.001)
        return len(calls)

    async def reads():
        return [await hedge.acall(read) for _ in range(22)]

    began = time.monotonic()
    assert asyncio.run(reads())[-1] == 23
    assert time.monotonic() - began < 4


def test_json_means_the_same():
    assert Hedge.model_validate({"after": "200ms", "max": 2}) == Hedge(after=0.2, max=2)
    assert Hedge.model_validate_json('{"after": "p99", "max": 2}') == Hedge("p99", 2)
    assert Hedge("p99.9").model_dump()["after"] == "p99.9"


# -- the estimate

latencies = st.lists(st.floats(1e-5, 1e3), min_size=1, max_size=400)


@settings(max_examples=200, deadline=None)
@given(latencies, st.floats(0.01, 0.999))
def test_an_estimate_is_close_to_the_exact_percentile(values, share):
    sketch = LatencySketch()
    for value in values:
        sketch.add(value)
    exact = sorted(values)
    rank = min(int(share * len(values)), len(values) - 1)
    near = {exact[max(rank - 1, 0)], exact[rank], exact[min(rank + 1, len(values) - 1)]}
    assert any(abs(sketch.quantile(share) - value) <= 0.026 * value for value in near)


@settings(max_examples=100, deadline=None)
@given(latencies, st.floats(0, 1), st.floats(0, 1))
def test_a_higher_percentile_is_not_lower(values, one, other):
    sketch = LatencySketch()
    for value in values:
        sketch.add(value)
    low, high = sorted((one, other))
    assert sketch.quantile(low) <= sketch.quantile(high)


def test_an_estimate_follows_a_change_and_stays_small():
    sketch = LatencySketch()
    for _ in range(3 * FORGETS):
        sketch.add(1.0)
    for number in range(15 * FORGETS):
        sketch.add(0.01 + number % 10 / 1000)
    assert sketch.quantile(0.95) < 0.021
    assert len(sketch._buckets) < 20
    assert sketch.seen == 18 * FORGETS


def test_any_latency_can_be_added_and_none_cannot_be_estimated():
    sketch = LatencySketch()
    with pytest.raises(ValueError, match="no latency yet"):
        sketch.quantile(0.5)
    for value in (0.0, 1e-9, 1e12):
        sketch.add(value)
    assert sketch.quantile(1.0) == pytest.approx(1e6, rel=0.03)
