"""Guarding calls: every spelling, what counts, and what a refused caller is told."""

from __future__ import annotations

import asyncio
import copy
import pickle
import threading
from typing import Any

import cloudpickle
import httpx
import pytest

from prefect_resilience.circuits import CircuitBreaker, CircuitPolicy, Transition, get_circuit
from prefect_resilience.errors.exceptions import AttemptTimeout, CircuitOpenError, ConfigurationError
from prefect_resilience.testing.stores import wait_until


def http_error(status: int, headers: dict[str, str] | None = None) -> httpx.HTTPStatusError:
    request = httpx.Request("GET", "http://service.test/")
    response = httpx.Response(status, headers=headers, request=request)
    return httpx.HTTPStatusError(f"answered {status}", request=request, response=response)


def failing(error: BaseException) -> Any:
    def fail() -> None:
        raise error

    return fail


def trip(breaker: CircuitBreaker, error: BaseException | None = None, times: int = 5) -> None:
    for _ in range(times):
        with pytest.raises(BaseException):  # noqa: B017, PT011
            breaker.call(failing(error or TimeoutError("no answer")))


# -- spellings


def test_call_returns_and_raises_what_the_function_does(breaker: CircuitBreaker) -> None:
    assert breaker.call(lambda a, /, *, b: (a, b), 1, b=2) == (1, 2)
    error = KeyError("mine")
    with pytest.raises(KeyError) as caught:
        breaker.call(failing(error))
    assert caught.value is error


async def test_acall_takes_plain_and_async_functions(breaker: CircuitBreaker) -> None:
    async def later(a: int) -> int:
        await asyncio.sleep(0)
        return a

    assert await breaker.acall(later, 1) == 1
    assert await breaker.acall(lambda a: a, 2) == 2
    for _ in range(5):
        with pytest.raises(TimeoutError):
            await breaker.acall(failing(TimeoutError()))
    with pytest.raises(CircuitOpenError):
        await breaker.acall(later, 1)


@pytest.mark.parametrize("sync_interval", [0, 60])
def test_call_refuses_an_async_function(store: Any, sync_interval: float) -> None:
    async def later() -> None: ...

    breaker = CircuitBreaker("service", store=store, sync_interval=sync_interval)
    breaker.call(int)
    for function in (later, lambda: later()):
        with pytest.raises(ConfigurationError, match="acall"):
            breaker.call(function)


def test_a_block_is_guarded(breaker: CircuitBreaker) -> None:
    with breaker as held:
        assert held is breaker
    assert breaker.snapshot().window_calls == 1
    for _ in range(5):
        with pytest.raises(TimeoutError), breaker:
            raise TimeoutError
    with pytest.raises(CircuitOpenError), breaker:
        pytest.fail("the block was entered")


async def test_an_async_block_is_guarded(breaker: CircuitBreaker) -> None:
    for _ in range(5):
        with pytest.raises(TimeoutError):
            async with breaker:
                await asyncio.wait_for(asyncio.sleep(60), 0)
    with pytest.raises(CircuitOpenError):
        async with breaker:
            pytest.fail("the block was entered")


async def test_blocks_of_one_breaker_may_overlap_and_nest(breaker: CircuitBreaker) -> None:
    async def work(fails: bool) -> None:
        async with breaker:
            await asyncio.sleep(0.01)
            with breaker:
                await asyncio.sleep(0.01)
            if fails:
                raise TimeoutError

    await asyncio.gather(*(work(n % 2 == 0) for n in range(4)), return_exceptions=True)
    seen = breaker.snapshot()
    assert (seen.window_calls, seen.window_failures) == (8, 2)


async def test_decorated_functions_stay_what_they_are(breaker: CircuitBreaker) -> None:
    @breaker
    def plain(a: int) -> int:
        """Words."""
        return a

    @breaker
    async def later(a: int) -> int:
        return a

    @breaker
    def items(n: int) -> Any:
        sent = yield from range(n)
        return sent

    @breaker
    async def later_items(n: int) -> Any:
        for item in range(n):
            yield item

    class Client:
        @breaker
        def method(self, a: int) -> int:
            return a

    assert (plain(1), plain.__doc__, plain.__name__) == (1, "Words.", "plain")
    assert await later(2) == 2
    assert list(items(3)) == [0, 1, 2]
    assert [item async for item in later_items(3)] == [0, 1, 2]
    assert Client().method(4) == 4
    assert breaker.snapshot().window_calls == 5
    breaker.force_open("test")
    for refused in (lambda: plain(1), lambda: list(items(1)), lambda: Client().method(1)):
        with pytest.raises(CircuitOpenError):
            refused()
    with pytest.raises(CircuitOpenError):
        await later(1)
    with pytest.raises(CircuitOpenError):
        _ = [item async for item in later_items(1)]


async def test_a_generator_that_fails_is_a_failure_and_one_that_is_left_is_neither(
    breaker: CircuitBreaker,
) -> None:
    @breaker
    def items() -> Any:
        yield 1
        raise TimeoutError

    @breaker
    async def later_items() -> Any:
        yield 1
        raise TimeoutError

    with pytest.raises(TimeoutError):
        list(items())
    with pytest.raises(TimeoutError):
        _ = [item async for item in later_items()]
    left, later_left = items(), later_items()
    next(left)
    left.close()
    await anext(later_left)
    await later_left.aclose()
    seen = breaker.snapshot()
    assert (seen.window_calls, seen.window_failures) == (2, 2)


# -- what counts


@pytest.mark.parametrize(
    "error",
    [
        http_error(429),
        http_error(500),
        http_error(503),
        TimeoutError(),
        AttemptTimeout(3),
        ConnectionRefusedError(),
        httpx.ConnectError("refused"),
        RuntimeError("surprise"),
    ],
    ids=repr,
)
def test_failures_of_the_service_trip_it(breaker: CircuitBreaker, error: Exception) -> None:
    trip(breaker, error)
    assert breaker.state == "open"


@pytest.mark.parametrize("status", [400, 401, 403, 404, 409, 422])
def test_mistakes_of_the_client_show_that_the_service_is_well(breaker: CircuitBreaker, status: int) -> None:
    trip(breaker, times=4)
    trip(breaker, http_error(status), times=1)
    assert breaker.snapshot().consecutive_failures == 0
    trip(breaker, http_error(status), times=50)
    seen = breaker.snapshot()
    assert (seen.state, seen.window_calls, seen.window_failures) == ("closed", 55, 4)


@pytest.mark.parametrize(
    "error",
    [KeyboardInterrupt(), asyncio.CancelledError(), GeneratorExit(), SystemExit(), CircuitOpenError("other")],
    ids=repr,
)
def test_what_says_nothing_about_the_service_counts_as_neither(
    breaker: CircuitBreaker, error: BaseException
) -> None:
    trip(breaker, times=4)
    trip(breaker, error, times=20)
    seen = breaker.snapshot()
    assert (seen.consecutive_failures, seen.window_calls) == (4, 4)


def test_counts_says_what_is_a_failure(store: Any) -> None:
    breaker = CircuitBreaker("service", store=store, sync_interval=0, counts=["not_found"])
    trip(breaker, TimeoutError(), times=9)
    assert breaker.snapshot().window_calls == 0
    trip(breaker, http_error(404))
    assert breaker.state == "open"


def test_slow_calls_open_it(store: Any) -> None:
    breaker = CircuitBreaker(
        "service", store=store, sync_interval=0, slow_call=1.0, slow_rate=0.5, minimum_calls=4
    )
    for duration in (0.1, 0.1, 1.5, 1.5):
        permit = breaker.admit() or breaker.ask()
        if breaker.settle(permit, duration=duration):
            breaker.flush()
    assert breaker.state == "open"
    assert breaker.snapshot().window_slow == 2


def test_a_call_that_is_slow_is_timed(store: Any) -> None:
    breaker = CircuitBreaker("service", store=store, slow_call=0.01, minimum_calls=100, sync_interval=60)
    ended = threading.Event()
    breaker.call(int)
    breaker.call(lambda: ended.wait(0.03))
    assert breaker.snapshot().window_slow == 1


# -- open, half open, closed


def test_an_open_circuit_refuses_at_once_and_says_why(
    breaker: CircuitBreaker, store: Any, transitions: list[Transition]
) -> None:
    trip(breaker, http_error(503))
    with pytest.raises(
        CircuitOpenError, match=r"'service' refuses calls for 30\.0 s.*answered 503"
    ) as caught:
        breaker.call(pytest.fail, "the call was made")
    assert caught.value.name == "service"
    assert caught.value.retry_in == pytest.approx(30, abs=0.5)
    assert [(t.name, t.before, t.after, t.generation) for t in transitions] == [
        ("service", "closed", "open", 2)
    ]
    assert transitions[0].retry_at == store.time + 30


def test_retry_after_of_the_server_lengthens_the_opening(breaker: CircuitBreaker, store: Any) -> None:
    trip(breaker, http_error(429, {"Retry-After": "90"}))
    assert breaker.snapshot().retry_at == store.time + 90


def test_it_recovers_through_probes(
    breaker: CircuitBreaker, store: Any, transitions: list[Transition]
) -> None:
    trip(breaker)
    store.time += 30
    assert breaker.state == "half_open"
    assert breaker.call(lambda: 1) == 1
    assert breaker.state == "half_open"
    assert breaker.call(lambda: 2) == 2
    assert breaker.state == "closed"
    assert [t.after for t in transitions] == ["open", "half_open", "closed"]


def test_a_failed_probe_opens_it_for_longer(breaker: CircuitBreaker, store: Any) -> None:
    trip(breaker)
    store.time += 30
    trip(breaker, times=1)
    seen = breaker.snapshot()
    assert (seen.state, seen.retry_at, seen.reopenings) == ("open", store.time + 60, 1)


def test_one_probe_at_a_time_and_a_cancelled_one_makes_room(breaker: CircuitBreaker, store: Any) -> None:
    trip(breaker)
    store.time += 30
    probe = breaker.ask()
    assert probe.lease
    assert breaker.snapshot().probes_in_flight == 1
    with pytest.raises(CircuitOpenError) as caught:
        breaker.ask()
    assert caught.value.retry_in == pytest.approx(60, abs=0.5)
    assert breaker.settle(probe, asyncio.CancelledError())
    breaker.flush()
    seen = breaker.snapshot()
    assert (seen.state, seen.probes_in_flight) == ("half_open", 0)
    second = breaker.ask()
    assert breaker.release(second)
    breaker.flush()
    assert breaker.snapshot().probes_in_flight == 0


def test_a_late_success_does_not_close_it(breaker: CircuitBreaker, store: Any) -> None:
    """Called while it was closed, answered while it is half open."""
    late = [breaker.admit() or breaker.ask() for _ in range(5)]
    trip(breaker)
    for permit in late:
        breaker.settle(permit)
    breaker.flush()
    assert breaker.state == "open"
    store.time += 30
    probe = breaker.ask()
    for permit in late:
        breaker.settle(permit)
    breaker.flush()
    seen = breaker.snapshot()
    assert (seen.state, seen.probes_in_flight) == ("half_open", 1)
    breaker.settle(probe)
    breaker.flush()
    assert breaker.state == "half_open", "one of the two successes that are needed"


def test_late_failures_do_not_reopen_it(breaker: CircuitBreaker) -> None:
    late = [breaker.admit() or breaker.ask() for _ in range(9)]
    breaker.reset()
    for permit in late:
        breaker.settle(permit, TimeoutError())
    breaker.flush()
    seen = breaker.snapshot()
    assert (seen.state, seen.window_calls) == ("closed", 0)


# -- by hand


def test_commands_hold_at_once(breaker: CircuitBreaker, store: Any, transitions: list[Transition]) -> None:
    breaker.force_open("maintenance")
    assert breaker.state == "forced_open"
    with pytest.raises(CircuitOpenError, match=r"until it is closed by hand.*maintenance") as caught:
        breaker.call(int)
    assert caught.value.retry_in is None
    breaker.disable()
    trip(breaker, times=50)
    assert breaker.state == "disabled"
    breaker.force_closed()
    trip(breaker)
    assert breaker.state == "open"
    breaker.reset()
    assert breaker.state == "closed"
    assert [t.after for t in transitions] == ["forced_open", "disabled", "closed", "open", "closed"]


def test_a_forced_opening_may_have_an_end(breaker: CircuitBreaker, store: Any) -> None:
    from datetime import datetime, timedelta, timezone

    breaker.call(int)
    for until in (
        store.time + 60,
        datetime.fromtimestamp(store.time + 60, timezone.utc),
        timedelta(minutes=1),
    ):
        breaker.force_open("maintenance", until=until)
        assert breaker.snapshot().retry_at == pytest.approx(store.time + 60, abs=1)
    store.time += 62
    assert breaker.state == "half_open"
    assert breaker.call(int) == 0


# -- handles


def test_a_breaker_goes_through_pickle_and_copy(url: str) -> None:
    breaker = CircuitBreaker("service", failure_threshold=2, store=url)
    trip(breaker, times=2)
    for copied in (
        pickle.loads(pickle.dumps(breaker)),
        cloudpickle.loads(cloudpickle.dumps(breaker)),
        copy.deepcopy(breaker),
        copy.copy(breaker),
    ):
        assert copied is not breaker
        assert (copied.name, copied.policy) == (breaker.name, breaker.policy)
        with pytest.raises(CircuitOpenError):
            copied.call(int)


def test_a_policy_goes_through_json(store: Any) -> None:
    policy = CircuitPolicy(window="2m", counts=["timeout"], slow_call=3)
    again = CircuitPolicy.model_validate_json(policy.model_dump_json())
    assert again == policy
    assert CircuitBreaker.from_policy("service", again, store).policy == policy
    assert CircuitBreaker("service", window="120s", counts=["timeout"], slow_call=3.0, store=store)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"failure_threshold": 0}, "at least 1"),
        ({"failure_threshold": True}, "whole number"),
        ({"failure_threshold": 1.5}, "whole number"),
        ({"probes": -1}, "at least 1"),
        ({"open_for": -1}, "0 or more"),
        ({"open_for": float("nan")}, "0 or more"),
        ({"probe_lease": 0}, "more than 0"),
        ({"slow_call": 0}, "more than 0"),
        ({"failure_rate": 0}, "at most 1"),
        ({"failure_rate": 50}, "at most 1"),
        ({"open_backoff": 0.5}, "between 1"),
        ({"window": "soon"}, 'write "60s"'),
        ({"counts": ["timeot"]}, "did you mean 'timeout'"),
        ({"counts": ["no such"]}, "write one of|did you mean"),
        ({"counts": []}, "empty"),
        ({"counts": "timeout"}, "list"),
        ({"name": ""}, "needs a name"),
        ({"name": "  "}, "needs a name"),
        ({"name": "a{b"}, "braces"),
        ({"name": "a{}"}, "names no parameter"),
        ({"store": "postgre"}, "sqlite:///"),
        ({"store": 5}, "no store"),
    ],
)
def test_what_cannot_be_meant_is_refused_in_one_sentence(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigurationError, match=words) as caught:
        CircuitBreaker(**{"name": "service", **wrong})
    assert "\n" not in str(caught.value)


# -- templates


def test_a_name_is_filled_from_the_parameters(store: Any) -> None:
    class Config:
        host = "h1"

    breaker = CircuitBreaker("http:{config.host}:{ports[0]}:{config.host}", store=store, sync_interval=0)
    assert breaker.fields == ("config", "ports")
    bound = breaker.bind({"config": Config(), "ports": [80], "more": 1})
    assert (bound.name, bound.fields) == ("http:h1:80:h1", ())
    assert breaker.bind({"config": Config(), "ports": [80]}) is bound
    assert bound.bind({}) is bound
    with pytest.raises(ConfigurationError, match="no parameter 'ports'"):
        breaker.bind({"config": Config()})
    with pytest.raises(ConfigurationError, match="AttributeError"):
        breaker.bind({"config": 1, "ports": [80]})
    with pytest.raises(ConfigurationError, match="template"):
        breaker.call(int)


def test_a_decorated_template_guards_each_service_apart(store: Any) -> None:
    breaker = CircuitBreaker("llm:{provider}", store=store, sync_interval=0)

    @breaker
    def ask(question: str, provider: str = "primary") -> str:
        if provider == "primary":
            raise TimeoutError
        return provider

    for _ in range(5):
        with pytest.raises(TimeoutError):
            ask("?")
    with pytest.raises(CircuitOpenError, match="llm:primary"):
        ask("?")
    assert ask("?", "other") == "other"
    assert get_circuit("llm:primary", store).state == "open"
    again = pickle.loads(pickle.dumps(breaker))
    assert again.fields == ("provider",)


def test_bound_names_are_taken_literally_and_kept_short(store: Any) -> None:
    breaker = CircuitBreaker("llm:{provider}", store=store, sync_interval=0)
    bound = breaker.bind({"provider": "{odd}"})
    assert (bound.name, bound.fields, bound.call(int)) == ("llm:{odd}", (), 0)
    assert pickle.loads(pickle.dumps(bound)).name == "llm:{odd}"
    names = {breaker.bind({"provider": "x" * 1000 + str(n)}).name for n in range(3)}
    assert len(names) == 3
    assert all(len(name) == 200 for name in names)
    assert CircuitBreaker("a{{b}}").name == "a{b}"


def test_only_so_many_bound_breakers_are_kept(store: Any) -> None:
    breaker = CircuitBreaker("llm:{provider}", store=store)
    first = breaker.bind({"provider": 0})
    for n in range(1100):
        breaker.bind({"provider": n})
    assert breaker.bind({"provider": 0}) is not first


# -- threads


def test_many_threads_lose_no_count(store: Any) -> None:
    breaker = CircuitBreaker("service", store=store, window=10_000, sync_interval=0.01)
    start = threading.Barrier(8)

    def work() -> None:
        start.wait()
        for _ in range(500):
            breaker.call(int)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert breaker.snapshot().window_calls == 8 * 500


def test_one_of_many_threads_probes(store: Any) -> None:
    breaker = CircuitBreaker("service", store=store, open_for=0, success_threshold=1)
    trip(breaker)
    made, refused = [], []
    start, answered = threading.Barrier(16), threading.Event()

    def work() -> None:
        start.wait()
        try:
            breaker.call(lambda: (made.append(1), answered.wait(30)))
        except CircuitOpenError:
            refused.append(1)

    threads = [threading.Thread(target=work) for _ in range(16)]
    for thread in threads:
        thread.start()
    wait_until(lambda: len(refused) == 15)
    answered.set()
    for thread in threads:
        thread.join()
    assert len(made) == 1
    assert breaker.state == "closed"


async def test_the_event_loop_never_waits_for_a_store(store: Any) -> None:
    breaker = CircuitBreaker("service", store=store, sync_interval=0)

    async def work() -> int:
        return threading.get_ident()

    for _ in range(3):
        assert await breaker.acall(work) == threading.get_ident()
        async with breaker:
            pass
    with pytest.raises(TimeoutError):
        await breaker.acall(failing(TimeoutError()))
    assert store.contacts > 3
    assert threading.get_ident() not in store.threads


async def test_a_task_cancelled_while_it_asks_leaves_no_lease(
    store: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    breaker = CircuitBreaker("service", store=store, sync_interval=0)
    for _ in range(5):
        with pytest.raises(TimeoutError):
            await breaker.acall(failing(TimeoutError()))
    store.time += 30
    asking, go_on = threading.Event(), threading.Event()
    swap = store.swap

    def slowly(*args: Any, **kwargs: Any) -> int:
        asking.set()
        go_on.wait(30)
        return swap(*args, **kwargs)

    store.swap = slowly
    task = asyncio.create_task(breaker.acall(int))
    await asyncio.to_thread(asking.wait, 30)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    go_on.set()
    await asyncio.to_thread(
        wait_until, lambda: breaker.state == "half_open" and breaker.snapshot().probes_in_flight == 0
    )


async def test_a_probe_that_is_cancelled_makes_room(store: Any) -> None:
    breaker = CircuitBreaker("service", store=store, sync_interval=0)
    for _ in range(5):
        with pytest.raises(TimeoutError):
            await breaker.acall(failing(TimeoutError()))
    store.time += 30
    task = asyncio.create_task(breaker.acall(asyncio.sleep, 60))
    await asyncio.to_thread(wait_until, lambda: breaker.snapshot().probes_in_flight == 1)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task
    await asyncio.to_thread(wait_until, lambda: breaker.snapshot().probes_in_flight == 0)
    assert breaker.state == "half_open"
