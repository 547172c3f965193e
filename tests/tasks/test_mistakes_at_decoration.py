"""What cannot be meant is refused when it is written, in one sentence that says what to write."""

from __future__ import annotations

import pytest
from prefect import flow, task

from prefect_resilience import (
    CircuitBreaker,
    ConfigurationError,
    Fallback,
    ResilientTask,
    Timeout,
    resilient_task,
)


def work(question, provider="first"):
    return question


async def awork(question):
    return question


async def aanswer(question):
    return question


def needs_more(question, region):
    return question


MISTAKES = {
    "no attempts": (lambda: resilient_task(retry=0)(work), "attempts=0"),
    "async fallback": (lambda: resilient_task(fallback=aanswer)(work), "async"),
    "fallback that needs more": (
        lambda: resilient_task(fallback=needs_more)(work),
        "needs the parameter 'region'",
    ),
    "a constant as fallback": (lambda: resilient_task(fallback=[{"a": 1}])(work), "Fallback.value"),
    "template without a parameter": (
        lambda: resilient_task(circuit=CircuitBreaker("llm:{provder}"))(work),
        "did you mean 'provider'",
    ),
    "no circuit": (lambda: resilient_task(circuit=3)(work), "CircuitBreaker"),
    "timeout of zero": (lambda: resilient_task(timeout=0)(work), "timeout"),
    "timeout with idle": (lambda: resilient_task(timeout=Timeout(idle=3))(work), "not a generator"),
    "unknown timeout": (lambda: resilient_task(timeout="llm-cal")(work), "llm-call"),
    "unknown option": (lambda: resilient_task(retrys=3)(work), "did you mean"),
    "unknown policy": (lambda: resilient_task(retry="often")(work), "Retry"),
    "unknown when": (lambda: Fallback(work, when=["rate_limits"]), "did you mean 'rate_limit'"),
    "a class as when": (lambda: Fallback(work, when=int), "does not name an error"),
    "age of nothing": (lambda: Fallback.last_known_good(max_age=0), "max_age"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_it_is_one_sentence_with_the_mend_in_it(name):
    make, says = MISTAKES[name]
    with pytest.raises(ConfigurationError, match=says) as caught:
        make()
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 600


@pytest.mark.api
@pytest.mark.parametrize("function", [work, awork])
def test_a_plain_task_over_a_resilient_one_is_refused_when_it_is_called(function):
    made = task(name="outer", retries=0)(resilient_task(function))

    @flow
    def calling():
        return made("what")

    says = f"@task decorates '{function.__name__}', which @resilient_task has already made a task: remove"
    with pytest.raises(ConfigurationError, match=says):
        calling()


def test_a_timeout_that_is_written_later_replaces_the_other_kind():
    ours = resilient_task(timeout=5)(work)
    theirs = task(timeout_seconds=7)(work)
    assert ours.with_options(name="n").guard.timeout.total == 5
    prefects = ours.with_options(timeout_seconds=3)
    assert (prefects.timeout_seconds, prefects.guard.timeout) == (3, None)
    assert (prefects.with_options(timeout=4).timeout_seconds) is None
    assert prefects.with_options(timeout=4).guard.timeout.total == 4
    wrapped = ResilientTask.wrap(theirs, timeout=2)
    assert (wrapped.timeout_seconds, wrapped.guard.timeout.total) == (None, 2)
    assert ResilientTask.wrap(theirs).timeout_seconds == theirs.timeout_seconds == 7


def test_two_configurations_for_one_circuit():
    first = CircuitBreaker("one-name", failure_threshold=3)
    again = CircuitBreaker("one-name", failure_threshold=3)
    assert again.name == first.name
    with pytest.raises(ConfigurationError, match="one-name"):
        resilient_task(circuit=CircuitBreaker("one-name", failure_threshold=4))(work)


def test_what_is_right_passes():
    made = resilient_task(
        circuit=CircuitBreaker("llm:{provider}"),
        fallback=[lambda question: question, Fallback.value(1)],
        timeout=3,
        retry={"max_attempts": 4, "backoff": "linear"},
    )(work)
    assert made.guard.retry.attempts == 4
    assert resilient_task(fallback=[aanswer, lambda: 1])(awork).guard.isasync
