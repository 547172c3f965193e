"""What a block makes of the code's own policy, option by option."""

from __future__ import annotations

from typing import Any

import pytest

from prefect_resilience import Backoff, CircuitBreaker, Fallback, Retry, Timeout, resilient_task
from prefect_resilience.calls.model import Guard
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.tasks.edge.live_policy import read_policy, with_policy


def archive(drug: str) -> str:
    return f"archive of {drug}"


def small_model(drug: str) -> str:
    return f"small model on {drug}"


def guard(**options: Any) -> Guard:
    @resilient_task(policy="llm-default", **options)
    def ask(drug: str, provider: str = "primary") -> str:
        return drug

    return ask.guard


def changed(own: Guard, **says: Any) -> Guard:
    return with_policy(own, read_policy(says))


def test_what_it_does_not_say_stays():
    own = guard(retry=3, circuit="kg", timeout=5, fallback=[archive], effect="external", dead_letter=True)
    assert changed(own) == own
    for says in ({"retry": 5}, {"timeout": 9}, {"fallback": ["archive"]}, {"circuit": {"open_for": 1}}):
        made = changed(own, **says)
        (name,) = says
        for field in ("retry", "circuit", "timeout", "fallbacks", "effect", "dead_letter", "fn", "policy"):
            if field.removesuffix("s") != name:
                assert getattr(made, field) == getattr(own, field), field


@pytest.mark.parametrize(
    ("own", "says", "means"),
    [
        (
            Retry(attempts=2, by_category={"rate_limit": 4}),
            5,
            Retry(attempts=5, by_category={"rate_limit": 4}),
        ),
        (
            Retry(by_category={"rate_limit": 4, "timeout": 2}),
            {"by_category": {"timeout": 5}},
            Retry(by_category={"rate_limit": 4, "timeout": 5}),
        ),
        (None, {"attempts": 4}, Retry(attempts=4)),
        (
            Retry(backoff=Backoff.exponential(initial=2, maximum=9)),
            {"backoff": {"initial": 1}},
            Retry(backoff=Backoff.exponential(initial=1, maximum=9)),
        ),
        (
            Retry(backoff=Backoff.exponential(initial=2, maximum=9)),
            {"backoff": {"kind": "constant", "initial": 1}},
            Retry(backoff=Backoff.constant(1)),
        ),
        (
            Retry(backoff=Backoff.schedule([1, 2])),
            {"backoff": {"initial": 3}},
            Retry(backoff=Backoff.exponential(3)),
        ),
        (Retry(backoff=Backoff.none()), {"backoff": {"initial": 3}}, Retry(backoff=Backoff.exponential(3))),
        (Retry(retry_on=["timeout"]), {"retry_on": ["503"]}, Retry(retry_on=["503"])),
    ],
)
def test_retries_are_merged_option_by_option(own: Any, says: Any, means: Retry):
    assert changed(guard(retry=own), retry=says).retry == means


def test_its_timeout_keeps_the_codes_mode():
    assert changed(guard(timeout=Timeout(5, mode="thread")), timeout=9).timeout == Timeout(9, mode="thread")
    assert changed(guard(), timeout=9).timeout == Timeout(9)


def test_its_fallbacks_are_chosen_and_ordered_by_name():
    own = guard(fallback=[archive, Fallback(small_model, degraded=True)])
    assert changed(own, fallback=["small_model", "archive"]).fallbacks == own.fallbacks[::-1]
    assert changed(own, fallback=[]).fallbacks == own.fallbacks


def test_its_circuit_lives_beside_the_codes_own(own_store: None):
    breaker = CircuitBreaker("llm:{provider}", failure_threshold=5, open_for=60)
    made = changed(guard(circuit=breaker), circuit={"failure_threshold": 1}).circuit
    assert made is not None
    assert (made.name, made.fields) == (breaker.name, breaker.fields)
    assert (made.policy.failure_threshold, made.policy.open_for) == (1, 60)
    bound = made.bind({"provider": "primary"})
    with pytest.raises(TimeoutError):
        bound.call(_times_out)
    # One failure was enough; whoever has the code's own policy meets the same open circuit.
    assert breaker.bind({"provider": "primary"}).snapshot().state == "open"
    again = changed(guard(circuit=breaker), circuit={"failure_threshold": 2}).circuit
    assert again is not None
    assert again.bind({"provider": "primary"}).state == "open"
    assert changed(guard(circuit=breaker), circuit={"failure_threshold": 5}).circuit is breaker


def _times_out() -> None:
    raise TimeoutError


@pytest.mark.parametrize(
    ("options", "says", "sentence"),
    [
        (
            {},
            {"circuit": {"open_for": 2}},
            "neither the block nor the code names a circuit: write circuit.name",
        ),
        (
            {"circuit": CircuitBreaker("kg", probe_calls=3)},
            {"circuit": {"success_threshold": 4}},
            "CircuitBreaker('kg'): probe_calls=3 is less than success_threshold=4",
        ),
        ({}, {"circuit": "llm:{provder}"}, "not a parameter of 'ask'; did you mean 'provider'?"),
        ({"fallback": [archive]}, {"fallback": ["archiv"]}, "no fallback 'archiv'; did you mean 'archive'?"),
        ({}, {"fallback": ["archive"]}, "fallback: the task has no fallback 'archive'"),
        (
            {},
            {"retry": {"attempts": 90, "by_category": {"timeout": {"attempts": 50}}}},
            "139 attempts are more",
        ),
    ],
)
def test_what_cannot_be_meant_for_this_task_is_one_sentence(
    options: dict[str, Any], says: dict[str, Any], sentence: str
):
    with pytest.raises(ConfigurationError, match=r"^[^\n]+$") as caught:
        changed(guard(**options), **says)
    assert sentence in str(caught.value)


@pytest.mark.parametrize("name", ["", 3, object()])
def test_a_policy_is_a_name(name: Any):
    with pytest.raises(ConfigurationError, match="is not a name: write the name of a ResiliencePolicy"):
        resilient_task(policy=name)(archive)
