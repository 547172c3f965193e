"""A class in a policy means that class wherever it is: the error, a member of a group, or a cause."""

import asyncio
from abc import ABC

import pytest

from prefect_resilience import (
    CircuitBreaker,
    ConfigurationError,
    Fallback,
    Retry,
    classify,
    error_context,
    resilient,
)
from prefect_resilience.guards.circuits.model import judge


class Busy(Exception):
    pass


class Mixin(ABC):  # noqa: B024
    """Not an exception: some libraries mark their errors with such a class."""


class Marked(RuntimeError, Mixin):
    pass


def raised(error, cause=None, handling=None, hide=False):
    """The error, raised from `cause`, or while `handling` was handled; `hide` is `raise error from None`."""
    try:
        try:
            raise handling or cause or KeyError
        except BaseException:
            if handling is None or hide:
                raise error from cause
            raise error  # noqa: B904
    except BaseException as found:
        return found


def with_(name, value):
    error = Busy()
    setattr(error, name, value)
    return error


def circular():
    error, cause = Busy("a"), ConnectionError("b")
    error.__cause__, cause.__cause__ = cause, error
    return error


REACHED = {
    "itself": ConnectionError(),
    "a subclass": ConnectionResetError(),
    "a member": ExceptionGroup("all", [ConnectionError()]),
    "one member of two": ExceptionGroup("all", [ValueError(), ConnectionError()]),
    "a group in a group": ExceptionGroup("all", [ExceptionGroup("in", [ValueError(), ConnectionError()])]),
    "a cause": raised(Busy(), ConnectionError()),
    "a cause of a known error": raised(TimeoutError(), ConnectionError()),
    "a cause of a member": ExceptionGroup("all", [raised(Busy(), ConnectionError())]),
    "a member of a cause": raised(Busy(), ExceptionGroup("all", [ConnectionError()])),
    "a cause of a group": raised(ExceptionGroup("all", [Busy()]), ConnectionError()),
    "an error that was being handled": raised(Busy(), handling=ConnectionError()),
    "causes in a circle": circular(),
    "a reason, as urllib keeps it": with_("reason", ConnectionError()),
    "a list of members, as in a library's own group": with_("exceptions", [Busy(), ConnectionError()]),
}
NOT_REACHED = {
    "another error": Busy(),
    "a suppressed context": raised(Busy(), handling=ConnectionError(), hide=True),
    "the context of a known error": raised(TimeoutError(), handling=ConnectionError()),
    "the context of a mistake in the handler": raised(KeyError(), handling=ConnectionError()),
    "a group of others": ExceptionGroup("all", [Busy(), TimeoutError()]),
    "a reason that is a text": with_("reason", "ConnectionError"),
    "a list of names": with_("exceptions", ["ConnectionError"]),
}
SPELLINGS = [
    ConnectionError,
    "ConnectionError",
    "builtins.ConnectionError",
    (PermissionError, (ConnectionError,)),
]


def verdicts(error, entry):
    """What each policy with this entry makes of the error."""
    info = classify(error)
    with_rule = Retry(attempts=1, by_category={ConnectionError: 7})
    policy = CircuitBreaker("reach", counts=["auth", ConnectionError]).policy
    context = error_context(error)
    return {
        "retry_on": Retry(retry_on=entry).decide(info, 1, exception=error).retry,
        "give_up_on": not Retry(retry_on=Exception, give_up_on=entry).decide(info, 1, exception=error).retry,
        "by_category": with_rule.rule_for(info, error).attempts == 7,
        "counts": judge(error, None, policy)[0] == "failure",
        "when": Fallback(str, when=entry).applies(context, error),
    }


@pytest.mark.parametrize("entry", SPELLINGS, ids=str)
@pytest.mark.parametrize("where", REACHED)
def test_a_class_is_found_wherever_it_is(where, entry):
    assert set(verdicts(REACHED[where], entry).values()) == {True}, verdicts(REACHED[where], entry)


@pytest.mark.parametrize("entry", SPELLINGS, ids=str)
@pytest.mark.parametrize("where", NOT_REACHED)
def test_nothing_else_is_found(where, entry):
    assert set(verdicts(NOT_REACHED[where], entry).values()) == {False}, verdicts(NOT_REACHED[where], entry)


@pytest.mark.parametrize(
    "entry", [Mixin, Marked, "Mixin", f"{__name__}.Mixin", RuntimeError, "RuntimeError"], ids=str
)
def test_base_classes_by_class_and_by_name(entry):
    group = ExceptionGroup("all", [raised(Busy(), Marked())])
    assert Retry(retry_on=entry).decide(classify(group), 1, exception=group).retry


@pytest.mark.parametrize(
    "members",
    [
        [ConnectionError(), KeyboardInterrupt()],
        [asyncio.CancelledError(), ConnectionError()],
        [BaseExceptionGroup("in", [SystemExit()]), ConnectionError()],
    ],
    ids=str,
)
def test_a_group_that_ends_the_program_is_never_retried(members):
    group = BaseExceptionGroup("all", members)
    for retry in (Retry(), Retry(retry_on=[ConnectionError]), Retry(by_category={ConnectionError: 5})):
        assert not retry.decide(classify(group), 1, exception=group).retry


def test_a_cancellation_behind_a_timeout_is_a_timeout():
    error = raised(TimeoutError(), asyncio.CancelledError())
    assert Retry().decide(classify(error), 1, exception=error).retry


def test_categories_and_codes_of_members():
    class NotFound(Exception):
        status_code = 404

    group = ExceptionGroup("all", [ConnectionError(), ExceptionGroup("in", [NotFound()])])
    info = classify(group)
    assert info.details["categories"] == ["network", "not_found"]
    assert info.details["codes"] == ["404", "NETWORK_ERROR"]
    assert Retry(retry_on="network").decide(info, 1, exception=group).retry
    assert not Retry(retry_on="network", give_up_on="404").decide(info, 1, exception=group).retry
    assert judge(group, None, CircuitBreaker("reach-members").policy)[0] == "failure"
    assert not Retry().decide(info, 1, exception=group).retry  # by default the worst member decides


def test_a_rule_for_a_class_goes_before_one_for_a_category():
    retry = Retry(by_category={"network": 2, ConnectionResetError: 6, "timeout": 3})
    reset, refused = ConnectionResetError(), ConnectionRefusedError()
    assert retry.rule_for(classify(reset), reset).attempts == 6
    assert retry.rule_for(classify(refused), refused).attempts == 2
    assert Retry.model_validate_json(retry.model_dump_json()) == retry


@pytest.mark.parametrize("key", ["net", "transient", 503, "timeouts", "503"])
def test_a_rule_for_nothing_is_refused(key):
    with pytest.raises(ConfigurationError, match=r"by_category\): unknown error category '.*'; (write|did)"):
        Retry(by_category={key: 2})


@pytest.mark.parametrize("entry", [int, "timeouts", None, ""])
def test_what_names_no_error_is_refused(entry):
    with pytest.raises(ConfigurationError):
        Retry(retry_on=[entry])
    with pytest.raises(ConfigurationError):
        Fallback(str, when=(entry,))


async def test_calls_around_a_task_group():
    calls = []

    async def fails():
        raise ConnectionError("refused")

    @resilient(
        retry=Retry(attempts=3, backoff="none", retry_on=[ConnectionError]),
        fallback=Fallback.value("instead", when=ConnectionError),
    )
    async def fan_out():
        calls.append(1)
        async with asyncio.TaskGroup() as group:
            group.create_task(fails())

    assert await fan_out() == "instead"
    assert len(calls) == 3
