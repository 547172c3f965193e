"""Retry.decide: a pure decision, stated as cases and as laws."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from prefect_resilience.errors.exceptions import ConfigurationError, DeadlineExceeded
from prefect_resilience.errors.taxonomy import ErrorCategory, ErrorInfo
from prefect_resilience.guards.retries.backoff import Backoff
from prefect_resilience.guards.retries.policy import Retry, RetryBudget, Verdict, error_name


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


def test_a_word_far_from_every_category_is_a_code():
    assert (error_name("time_over"), error_name("server")) == ("time_over", "server")


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
        (
            {"backoff": {"kind": "exponential", "jitter": 0.3}, "initial_delay_ms": 60_000},
            Retry(backoff=Backoff.exponential(60, minimum=30, jitter=0.3)),
        ),
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
        (
            {"jitter_fraction": 0.1, "jitter_factor": 0.1},
            "Retry has both 'jitter_fraction' and 'jitter_factor': write one of them$",
        ),
        ({"attempts": 0}, "attempts=0"),
        ({"max_retries": -1}, "max_retries=-1"),
        ({"retry_on": ["rate_limits"]}, "did you mean 'rate_limit'"),
        ({"retry_on": [3.5]}, "does not name an error"),
        (
            {"by_category": {"rate limits": 3}},
            "unknown error category 'rate limits'; write one of agent_crash, auth",
        ),
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


def test_flat_options_beside_a_backoff_are_all_named() -> None:
    with pytest.raises(ValueError, match="beside it: write them inside") as caught:
        Retry.model_validate({"backoff": Backoff.none(), "initial_delay_ms": 1, "max_delay_ms": 2})
    assert "a backoff and initial_delay_ms, max_delay_ms beside it" in str(caught.value)


def test_a_server_that_asks_for_the_cap_gets_it_and_for_more_does_not() -> None:
    policy = Retry(attempts=3, backoff=Backoff.constant(initial=2, jitter=0), retry_after_cap=60)

    def asked(seconds: float) -> Verdict:
        return policy.decide(ErrorInfo.of(ErrorCategory.RATE_LIMIT, "429", retry_after=seconds), 1)

    assert asked(60) == Verdict(True, 60, "429 is retryable: attempt 2 of 3", asked_for=60)
    assert asked(1) == Verdict(True, 2, "429 is retryable: attempt 2 of 3")
    assert Retry(respect_retry_after=False).decide(error(retry_after=3600.0), 1).retry
    why = "the server asks to wait 61 s, more than retry_after_cap=60 s"
    assert asked(61) == Verdict(False, 0.0, why)


def test_a_category_without_a_time_of_its_own_has_that_of_the_whole() -> None:
    own = Retry(attempts=9, backoff=Backoff.constant(initial=4, jitter=0))
    policy = Retry(max_elapsed=10, by_category={"unavailable": own})
    assert not policy.decide(error(), 1, elapsed=7).retry
    assert policy.decide(error(), 1, elapsed=5).retry


def test_an_error_goes_by_all_of_its_names() -> None:
    known = ErrorInfo.of(ErrorCategory.UNAVAILABLE, "503", exception_type="some.library.errors.Away")
    for name in ("unavailable", "transient", "503", "some.library.errors.Away", "Away"):
        assert Retry(retry_on=[name]).decide(known, 1).retry, name
    for name in ("library.errors.Away", "errors.Away", "some", "504"):
        assert not Retry(retry_on=[name]).decide(known, 1).retry, name


@pytest.mark.parametrize(
    ("theirs", "ours", "value"),
    [
        ("max_attempts", "attempts", 3),
        ("maxAttempts", "max_attempts", 3),
        ("max_retries", "attempts", 3),
        ("retryable_errors", "retry_on", ["503"]),
    ],
)
def test_two_words_for_one_thing_are_both_named(theirs: str, ours: str, value: object) -> None:
    with pytest.raises(ValueError, match="which mean the same: write one of them") as caught:
        Retry.model_validate({theirs: value, ours: value})
    assert f"Retry has both {ours!r} and {theirs!r}" in str(caught.value)


@pytest.mark.parametrize(
    ("policy", "info", "attempt", "options", "verdict"),
    [
        (Retry(attempts=1), error(), 1, {}, Verdict(False, 0.0, "one attempt only")),
        (Retry(attempts=2), error(), 2, {}, Verdict(False, 0.0, "all 2 attempts used")),
        (
            Retry(max_elapsed=10, backoff=Backoff.constant(4)),
            error(),
            1,
            {"elapsed": 6.5},
            Verdict(False, 0.0, "waiting 4 s would exceed max_elapsed=10 s"),
        ),
        (
            Retry(max_elapsed=4, backoff=Backoff.constant(4)),
            error(),
            1,
            {},
            Verdict(True, 4.0, "503 is retryable: attempt 2 of 3"),
        ),
        (
            Retry(),
            error(details={"deadline_set_at": "billing.py:7"}),
            1,
            {},
            Verdict(False, 0.0, "the deadline has passed"),
        ),
        (
            Retry(),
            error(),
            1,
            {"exception": DeadlineExceeded(60.0, "billing.py:7")},
            Verdict(False, 0.0, "the deadline has passed"),
        ),
        (
            Retry(),
            error(),
            1,
            {"exception": KeyboardInterrupt()},
            Verdict(False, 0.0, "KeyboardInterrupt ends the call"),
        ),
        # AWS's header asks for at most some seconds more than the backoff
        (
            Retry(backoff=Backoff.constant(2)),
            error(retry_after=60.0, details={"longest_beyond_backoff": 5.0}),
            1,
            {},
            Verdict(True, 7.0, "503 is retryable: attempt 2 of 3", 7.0),
        ),
        (
            Retry(backoff=Backoff.constant(2)),
            error(retry_after=4.0, details={"longest_beyond_backoff": 5.0}),
            1,
            {},
            Verdict(True, 4.0, "503 is retryable: attempt 2 of 3", 4.0),
        ),
        (
            Retry(backoff=Backoff.constant(2)),
            error(retry_after=2.0),
            1,
            {},
            Verdict(True, 2.0, "503 is retryable: attempt 2 of 3"),
        ),
        # The draw reaches the backoff, and the jitter of what the server asks for
        (
            Retry(backoff=Backoff.exponential(10, jitter=0.2)),
            error(),
            1,
            {"random": 0.75},
            Verdict(True, 11.0, "503 is retryable: attempt 2 of 3"),
        ),
        (
            Retry(backoff=Backoff(kind="decorrelated", initial=1, maximum=100)),
            error(),
            2,
            {"random": 0.5, "previous_delay": 11.0},
            Verdict(True, 17.0, "503 is retryable: attempt 3 of 3"),
        ),
    ],
)
def test_verdicts_to_the_letter(policy, info, attempt, options, verdict) -> None:
    assert policy.decide(info, attempt, **options) == verdict


@pytest.mark.parametrize(
    ("attempt", "random", "elapsed", "delay"),
    [(1, 0.0, 0, 40.0), (1, 0.9, 0, 58.0), (1, 0.9, 59, 40.9), (4, 0.2, 0, 46.4)],
)
def test_what_the_server_asks_for_is_lengthened_within_the_time_left(attempt, random, elapsed, delay) -> None:
    policy = Retry(attempts=9, backoff=Backoff.exponential(8, maximum=100, jitter=0.5), max_elapsed=100)
    verdict = policy.decide(error(retry_after=40.0), attempt, random=random, elapsed=elapsed)
    assert (verdict.delay, verdict.asked_for) == (pytest.approx(delay), 40.0)


class Away(Exception):
    """An error whose classes have rules of their own."""


class FarAway(Away):
    """Of a class below it."""


def test_a_class_has_a_rule_before_its_category_has_one() -> None:
    policy = Retry(attempts=1, by_category={Away: 5, "unavailable": 7, "network": 9})
    found = error(details={"categories": ["network", "unavailable"]})
    assert policy.rule_name(found) == "unavailable"
    assert policy.rule_name(found, FarAway()).endswith("Away")
    assert policy.rule_name(error("validation")) == ""
    assert (policy.rule_for(found, FarAway()).attempts, policy.rule_for(found).attempts) == (5, 7)
    assert policy.decide(error("validation"), 4, exception=FarAway()).retry
    assert not policy.decide(error("validation"), 1).retry
    assert Retry().rule_for(found) == Retry()
    with pytest.raises(ConfigurationError, match="by_category of its own"):
        Retry(by_category={"timeout": Retry(by_category={"timeout": 2})})
