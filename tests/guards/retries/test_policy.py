"""Retry.decide: a pure decision, stated as cases and as laws."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.errors.taxonomy import ErrorCategory, ErrorInfo
from prefect_resilience.guards.retries.backoff import Backoff
from prefect_resilience.guards.retries.policy import Retry, RetryBudget


def error(category: str = "unavailable", code: str = "503", **fields) -> ErrorInfo:
    return ErrorInfo.of(ErrorCategory(category), code, **fields)


categories = st.sampled_from(list(ErrorCategory))
fractions = st.floats(0, 1, exclude_max=True)


@pytest.mark.requirement("002.28")
@given(categories, st.integers(1, 50), st.integers(1, 20), st.floats(0, 1000), fractions)
def test_no_policy_makes_more_attempts_than_it_says(category, attempt, attempts, elapsed, random):
    verdict = Retry(attempts=attempts).decide(ErrorInfo.of(category), attempt, elapsed=elapsed, random=random)
    assert not (verdict.retry and attempt >= attempts)
    assert verdict.delay >= 0
    assert verdict.why
    assert verdict.retry or verdict.delay == 0


@given(st.floats(0, 5000), st.floats(0, 600), st.floats(0, 600), fractions)
def test_a_retry_never_comes_before_the_server_wants_it_nor_after_the_deadline(asked, cap, elapsed, random):
    policy = Retry(attempts=9, retry_after_cap=cap, max_elapsed=300)
    verdict = policy.decide(error(retry_after=asked), 1, elapsed=elapsed, random=random)
    if verdict.retry:
        assert verdict.delay >= asked
        assert asked <= cap
        assert elapsed + verdict.delay <= 300
        backoff = policy.decide(error(), 1, elapsed=elapsed, random=random).delay
        assert verdict.asked_for == (asked if verdict.delay > backoff else None)


@pytest.mark.requirement("003.04")
@pytest.mark.parametrize("category", list(ErrorCategory))
def test_without_more_ado_the_classification_decides(category):
    assert Retry().decide(ErrorInfo.of(category), 1).retry is category.retryable


def test_the_delays_are_those_of_the_backoff():
    policy = Retry(attempts=5, backoff=Backoff.exponential(1, jitter=0))
    assert [policy.decide(error(), n).delay for n in (1, 2, 3, 4)] == [1, 2, 4, 8]


def test_an_hour_of_retry_after_is_given_up_at_once():
    assert "retry_after_cap=300" in Retry().decide(error("rate_limit", "429", retry_after=3600.0), 1).why
    assert Retry(respect_retry_after=False).decide(error(retry_after=3600.0), 1).retry


@pytest.mark.requirement("002.03")
def test_retry_on_names_exactly_what_is_retried():
    policy = Retry(retry_on=["429", ValueError, "timeout", "infrastructure"])
    assert policy.decide(error("rate_limit", "429"), 1).retry
    assert policy.decide(error("timeout", "TIMEOUT"), 1).retry
    assert policy.decide(error("agent_crash", "x"), 1).retry
    assert not policy.decide(error("unavailable", "503"), 1).retry
    unexpected = error("unexpected", "UnicodeError", exception_type="builtins.UnicodeError")
    assert not policy.decide(unexpected, 1).retry
    assert policy.decide(unexpected, 1, exception=UnicodeError()).retry
    assert policy.decide(error("unexpected", "ValueError", exception_type="builtins.ValueError"), 1).retry
    assert Retry(retry_on=ErrorCategory.RATE_LIMIT).retry_on == ("rate_limit",)
    assert Retry(retry_on=503).decide(error(), 1).retry
    assert Retry(retry_on=None).retry_on is None
    assert Retry(retry_on=["context_length_exceeded"]).retry_on == ("context_length_exceeded",)


def test_give_up_on_wins_over_everything():
    policy = Retry(retry_on=["503"], give_up_on=["unavailable"], by_category={"unavailable": 9})
    assert policy.decide(error(), 1).why == "give_up_on names 503"


def test_a_category_has_its_own_attempts_delays_and_limits():
    policy = Retry(
        attempts=2,
        max_elapsed=60,
        by_category={
            "rate_limit": Retry(attempts=8, backoff=Backoff.constant(5), max_elapsed=600),
            ErrorCategory.TIMEOUT: {"attempts": 1},
            "validation": 2,
        },
    )
    assert policy.decide(error("rate_limit", "429"), 7, elapsed=500).delay == 5
    assert not policy.decide(error("rate_limit", "429"), 8).retry
    assert not policy.decide(error("timeout", "TIMEOUT"), 1).retry
    assert policy.decide(error("validation", "x"), 1).retry
    assert not policy.decide(error(), 1, elapsed=60).retry
    assert policy.most_retries == 1 + 7 + 0 + 1
    with pytest.raises(ConfigurationError, match="by_category of its own"):
        Retry(by_category={"timeout": Retry(by_category={"timeout": 2})})


@pytest.mark.requirement("000.18", "000.19", "002.01")
@pytest.mark.parametrize(
    ("written", "meant"),
    [
        ({"max_attempts": 4}, Retry(attempts=4)),
        ({"max_retries": 3}, Retry(attempts=4)),
        ({"max_retries": 0}, Retry(attempts=1)),
        (5, Retry(attempts=5)),
        (
            {
                "max_retries": 5,
                "initial_delay_ms": 500,
                "max_delay_ms": 30000,
                "backoff_multiplier": 2.0,
                "jitter_fraction": 0.2,
            },
            Retry(
                attempts=6,
                backoff=Backoff.exponential(0.5, minimum=0.5, maximum=30, multiplier=2, jitter=0.2),
            ),
        ),
        (
            {"max_attempts": 3, "initial_delay_ms": 1000, "max_delay_ms": 10000},
            Retry(backoff=Backoff.exponential(1, maximum=10, jitter=0)),
        ),
        (
            {"initial_delay_ms": 100, "jitter_factor": 0.1, "max_delay_ms": 50},
            Retry(backoff=Backoff.exponential(0.1, minimum=0.05, maximum=0.05, jitter=0.1)),
        ),
        (
            {"maxAttempts": 4, "initialDelayMs": 1000, "maxDelayMs": 30000, "backoffMultiplier": 2},
            Retry(attempts=4, backoff=Backoff.exponential(1, maximum=30, multiplier=2)),
        ),
        ({"maxRetries": 1, "jitterFactor": 0.5}, Retry(attempts=2, backoff=Backoff.exponential(jitter=0.5))),
        (
            {
                "max_attempts": 3,
                "backoff": "linear",
                "initial_delay_ms": 1000,
                "retryable_errors": ["503", "NETWORK_ERROR"],
            },
            Retry(attempts=3, backoff=Backoff.linear(1), retry_on=["503", "NETWORK_ERROR"]),
        ),
        ({"backoff": "none", "initial_delay_ms": 1000}, Retry(backoff=Backoff.none())),
        ({"backoff": {"kind": "constant"}, "initial_delay_ms": 100}, Retry(backoff=Backoff.constant(0.1))),
        ({"budget": {"ratio": 0.1}}, Retry(budget=RetryBudget(ratio=0.1))),
    ],
)
def test_the_spellings_of_json(written, meant):
    read = Retry.model_validate(written)
    assert read == meant
    assert Retry.model_validate_json(read.model_dump_json()) == meant


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"jitter_fraction": 0.1, "jitter_factor": 0.1}, "both 'jitter_fraction' and 'jitter_factor'"),
        ({"attempts": 0}, "attempts=0"),
        ({"max_retries": -1}, "max_retries=-1"),
        ({"retry_on": ["rate_limits"]}, "did you mean 'rate_limit'"),
        ({"retry_on": [3.5]}, "does not name an error"),
        ({"by_category": {"rate_limits": 3}}, "by_category"),
        ({"max_elapsed": -1}, "max_elapsed"),
        ({"initial_delay_ms": "5"}, "initial_delay_ms='5'"),
        ({"atempts": 3}, "did you mean 'attempts'"),
        ({"backoff": "exponentiel"}, "exponentiel"),
    ],
)
def test_mistakes_are_one_sentence(options, says):
    with pytest.raises(ConfigurationError, match=says) as caught:
        Retry(**options)
    assert "\n" not in str(caught.value)


def test_what_is_no_policy_at_all_is_refused():
    with pytest.raises(ValueError, match="Retry"):
        Retry.model_validate("often")
