"""The likeliest mistakes in writing options: each is one sentence that says what to write instead."""

import re
from datetime import timedelta
from typing import Any

import pytest
from prefect import task as prefect_task

from prefect_resilience import (
    Backoff,
    Bulkhead,
    CircuitBreaker,
    CircuitPolicy,
    ConfigurationError,
    ErrorBudget,
    Fallback,
    Hedge,
    RateLimit,
    ResilientTask,
    Retry,
    RetryBudget,
    Timeout,
    path,
    resilient_flow,
    resilient_task,
)
from prefect_resilience.http import ResilientTransport


def work(question: str) -> str:
    return question


async def aanswer(question: str) -> str:
    return question


def needs_more(question: str, region: str) -> str:
    return question + region


def task(**options: Any) -> Any:
    return resilient_task(**options)(work)


MISTAKES: list[tuple[Any, str]] = [
    # retries
    (lambda: Retry(3, 5), "Retry(3, 5): write the options by their names, as in Retry(attempts=3)"),
    (lambda: Retry(attempts="3x"), "Retry(attempts='3x'): write a whole number, as in 3"),
    (
        lambda: Retry(backoff=5),
        "Retry(backoff): write Backoff.constant(5) for the same delay each time, or Backoff.exponential(5)",
    ),
    (
        lambda: Retry(max_elapsed="5 minutes"),
        "Retry(max_elapsed): '5 minutes' is not a duration: "
        'write 30 (seconds), "500ms", "30s", "1m", "1h30m" or a timedelta',
    ),
    # delays
    (
        lambda: Backoff(5),
        "Backoff(5): write Backoff.constant(5) for the same delay each time, or Backoff.exponential(5)",
    ),
    (lambda: Backoff.exponential(jitter=20), "Backoff(jitter=20): write at most 1"),
    (lambda: Backoff.exponential(base=2), "Backoff has no option 'base'; write one of delays, initial, "),
    # circuits
    (
        lambda: CircuitBreaker("m-1", threshold=3),
        "CircuitBreaker has no option 'threshold'; did you mean 'failure_threshold' or 'success_threshold'",
    ),
    (
        lambda: CircuitBreaker("m-2", CircuitPolicy(open_for=5)),
        "CircuitBreaker('m-2', ...) takes options: with a CircuitPolicy write "
        "CircuitBreaker.from_policy('m-2', policy)",
    ),
    (lambda: CircuitBreaker(failure_threshold=3), "CircuitBreaker: missing a required argument: 'name'; "),
    (
        lambda: CircuitBreaker("m-4", counts=["timeouts"]),
        "CircuitBreaker('m-4', counts): counts has 'timeouts', which is not an error category; did "
        "you mean 'timeout'?",
    ),
    (
        lambda: CircuitBreaker("m-5", success_threshold=4, probe_calls=3),
        "CircuitBreaker('m-5'): probe_calls=3 is less than success_threshold=4, so the circuit "
        "could never close: write probe_calls=4 or more",
    ),
    (lambda: task(circuit=3), "CircuitBreaker"),
    (
        lambda: task(circuit=CircuitPolicy()),
        "circuit= is a CircuitPolicy, which has no name: write CircuitBreaker.from_policy('name', policy)",
    ),
    # timeouts and limits
    (
        lambda: task(timeout="5 seconds"),
        "unknown operation '5 seconds' for a timeout; write one of default, file-read, llm-call, "
        'tool-execution, web-fetch, or a duration such as "30s"',
    ),
    (
        lambda: task(timeout=5, timeout_seconds=5),
        "a resilient task has both timeout=5 and timeout_seconds=5: "
        "write only timeout=, which bounds each attempt",
    ),
    (lambda: task(timeout=0), "timeout"),
    (lambda: task(timeout=Timeout(idle=3)), "not a generator"),
    (
        lambda: Timeout(-1),
        "Timeout(total): -1 is not a duration above 0: write 30 (seconds), ",
    ),
    (lambda: task(limits=3), "limits=3 is not a limit: write Bulkhead(5) or RateLimit(10, per=1)"),
    (lambda: task(hedge=0.8), "hedge=0.8 is not a hedge: write Hedge(after=0.8)"),
    # fallbacks, effects, budgets, options
    (
        lambda: task(fallback=work("now")),
        "a fallback must be a function or a task, not 'now'; for a constant write Fallback.value('now')",
    ),
    (lambda: task(fallback=aanswer), "is async but 'work' is not"),
    (lambda: task(fallback=needs_more), "needs the parameter 'region'"),
    (lambda: Fallback(work, when=["rate_limits"]), "did you mean 'rate_limit'"),
    (lambda: Fallback(work, when=int), "does not name an error"),
    (
        lambda: Fallback.last_known_good(max_age="yesterday"),
        "Fallback.last_known_good(max_age='yesterday'): write seconds above 0, \"1h\", or None",
    ),
    (lambda: task(retry="often"), "Retry"),
    (lambda: task(retry=True), "retry=True is not a retry policy: write Retry(attempts=3), "),
    (lambda: CircuitBreaker("a", probes=0), "CircuitBreaker('a', probes=0): write at least 1"),
    (lambda: CircuitBreaker("a", window="0s"), "window='0s' is not between 10 ms and 7 days: write "),
    *(
        (lambda long=long: task(timeout=long), f"Timeout(total): {long!r} is not a duration ")
        for long in (1e300, timedelta.max, "99999999w", float("nan"))
    ),
    (lambda: ResilientTransport(deadline=1e300), "deadline=1e+300 must be a duration above 0, of at most"),
    (lambda: task(retry=3, retries=3), "has both retry= and retries=3: write it in Retry(...), or leave "),
    (lambda: task(dead_letters=True), "a resilient task has no option 'dead_letters'; did you mean "),
    (
        lambda: resilient_task(resilient_task(work)),
        "'work' is already a task: write ResilientTask.wrap(work, ...)",
    ),
    (
        lambda: resilient_flow(resilient_task(work)),
        "@resilient_flow decorates the task 'work': decorate a function that calls the task",
    ),
    (
        lambda: ResilientTask.wrap(prefect_task(resilient_task(work))),
        "task 'work' is already resilient: write work.with_options(...)",
    ),
    (lambda: Backoff([1, 5]), "write Backoff.schedule([1, 5]) for exactly these delays"),
    (lambda: Retry(budget=7), "Retry(budget=7): write RetryBudget(...) or a mapping of its options"),
    # conditions
    (
        lambda: path("a") > 1 & path("b") > 2,
        "path('b') is combined by & or | without a comparison: these bind tighter than >, == and <, so put "
        "each comparison in parentheses, as in (path('a') > 1) & (path('b') > 2)",
    ),
    (lambda: ~path("a"), "~path('a') has no comparison: write ~(path('a') > 1), or write "),
    (
        lambda: (path("a") > 1) & True,
        "& combines two conditions, not a condition and True",
    ),
]


@pytest.mark.parametrize(("write", "says"), MISTAKES, ids=[says[:60] for _, says in MISTAKES])
def test_a_mistake_is_one_sentence_with_the_mend(write: Any, says: str) -> None:
    with pytest.raises(ConfigurationError, match=re.escape(says)) as caught:
        write()
    told = str(caught.value)
    assert "\n" not in told
    assert len(told) < 500
    for foreign in ("Input should", "input should", "positional argument", "unexpected keyword", "pydantic"):
        assert foreign not in told


DURATIONS = [1.5, "1.5", "1500ms", "1.5s", "1s500ms", " 1 s 500 ms ", timedelta(seconds=1.5)]


@pytest.mark.parametrize("written", DURATIONS, ids=repr)
def test_every_duration_may_be_written_in_every_way(written: Any) -> None:
    retry = Retry(max_elapsed=written, retry_after_cap=written, backoff=Backoff.constant(written))
    assert (retry.max_elapsed, retry.retry_after_cap, retry.delay(0)) == (1.5, 1.5, 1.5)
    delays = Backoff.schedule([written], minimum=written, maximum=written)
    assert (delays.delays, delays.minimum, delays.maximum) == ((1.5,), 1.5, 1.5)
    assert RetryBudget(window=written).window == 1.5
    names = ("slow_call", "open_for", "open_max", "probe_lease", "sync_interval", "baseline_memory")
    circuit = CircuitPolicy(**dict.fromkeys(names, written))
    assert {getattr(circuit, name) for name in names} == {1.5}
    assert (Timeout(written).total, Timeout(idle=written).idle) == (1.5, 1.5)
    assert task(timeout=written).guard.timeout.total == 1.5
    assert Bulkhead(1, max_wait=written).max_wait == 1.5
    limit = RateLimit(1, per=written, max_wait=written)
    assert (limit.per, limit.max_wait, Hedge(after=written).after) == (1.5, 1.5, 1.5)
    assert Fallback.last_known_good(max_age=written).max_age == 1.5
    if isinstance(written, str) and not written.isdecimal() and written != "1.5":
        assert CircuitPolicy(window=written).window == "1.5s"


def test_what_is_obviously_meant_is_taken() -> None:
    assert Retry(3) == Retry(attempts=3)
    assert RetryBudget(0.1) == RetryBudget(ratio=0.1)
    assert ErrorBudget(0.9) == ErrorBudget(objective=0.9)
    assert Backoff.exponential(5) == Backoff.exponential(initial=5)
    assert Retry(backoff="linear").backoff == Backoff.linear()
