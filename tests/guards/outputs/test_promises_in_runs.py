"""Promises about output, in real runs: told, repaired, given up."""

from __future__ import annotations

import json

import pytest
from pydantic import BaseModel

from prefect_resilience import (
    Backoff,
    CircuitBreaker,
    ConfigurationError,
    Effect,
    Expect,
    OutputFormatError,
    Retry,
    batch,
    error_context,
    last_violations,
    previous_error,
    resilient_task,
)

pytestmark = pytest.mark.api


class Answer(BaseModel):
    score: float


GOOD, BAD = '{"score": 1}', '{"score": "high"}'


@pytest.mark.smoke
@pytest.mark.requirement("001.22")
def test_malformed_output_repaired_on_the_second_try(mode, seen):
    heard = []

    def ask(question, error=None, violations=None):
        heard.append((error and error.code, violations, last_violations()))
        return GOOD if violations else BAD

    made = mode.task(ask, expect=Expect(Answer, repair=True))
    state = mode.state(made, "why?")
    assert state.result() == Answer(score=1)
    wrong = heard[1][1]
    assert [each["path"] for each in wrong] == ["/score"]
    assert heard == [(None, None, []), ("OutputFormatError", wrong, wrong)]
    names = [each.name for each in seen.states(state.state_details.task_run_id)]
    assert "Retrying" in names


@pytest.mark.requirement("001.12")
def test_given_up_after_the_third_with_the_original_kept(mode):
    calls = []

    def ask(question):
        calls.append(previous_error() and previous_error().attempt)
        return f"attempt {len(calls)}: [1, 2"

    with pytest.raises(OutputFormatError) as caught:
        mode.value(mode.task(ask, expect=Expect("array", repair=True, attempts=3)), "why?")
    assert calls == [None, 1, 2]
    context = error_context(caught.value)
    assert (context.attempt, context.max_attempts, len(context.history)) == (3, 3, 3)
    assert (context.category, context.reason) == ("validation", "output_format_failure")
    assert context.partial_output.content == "attempt 3: [1, 2"
    assert caught.value.original_output == "attempt 3: [1, 2"
    assert context.details["expected_type"] == "array"
    assert context.details["actual_type"] == "string"


def test_without_repair_it_is_permanent_and_goes_to_the_fallback(mode):
    calls = []

    def ask():
        calls.append(1)
        return "{}"

    made = mode.task(ask, expect="array", retry=Retry(attempts=3, backoff=Backoff.none()))
    with pytest.raises(OutputFormatError):
        mode.value(made)
    assert len(calls) == 1
    instead = made.with_options(fallback=lambda error: error.details["actual_type"])
    assert mode.value(instead) == "object"


def test_the_tasks_own_retry_says_how_often_validation_is_tried_again(mode):
    calls = []

    def ask():
        calls.append(1)
        return "{}"

    own = Retry(by_category={"validation": Retry(attempts=2, backoff=Backoff.none())})
    for expect in ("array", Expect("array", repair=True, attempts=9)):
        calls.clear()
        with pytest.raises(OutputFormatError):
            mode.value(mode.task(ask, expect=expect, retry=own))
        assert len(calls) == 2


def test_other_errors_keep_their_own_attempts_beside_a_repair(mode):
    script = iter([ConnectionResetError("cut"), "{}", ConnectionResetError("cut"), "[]", None])

    def ask():
        said = next(script)
        if isinstance(said, Exception):
            raise said
        return said

    retry = Retry(attempts=3, backoff=Backoff.none())
    made = mode.task(ask, expect=Expect("array", repair=True, attempts=2), retry=retry)
    assert mode.value(made) == []
    alone = mode.task(ask, expect=Expect("array", repair=True), retry=None)
    assert alone.retries == 2
    assert alone.with_options(expect="array").retries == 0


def test_a_repair_still_knows_what_was_wrong_after_a_failure_of_another_kind(mode):
    script = iter(["{}", ConnectionResetError("cut"), "[]"])
    told = []

    def ask(violations=None):
        told.append((bool(violations), last_violations() == (violations or [])))
        said = next(script)
        if isinstance(said, Exception):
            raise said
        return said

    promise = Expect(lambda value: value == "[]", repair=True)
    made = mode.task(ask, expect=promise, retry=Retry(attempts=3, backoff=Backoff.none()))
    assert mode.value(made) == "[]"
    assert told == [(False, True), (True, True), (True, True)]


def test_what_was_given_by_the_caller_is_not_replaced(mode):
    heard = []

    def ask(violations=None):
        heard.append(violations)
        return BAD

    with pytest.raises(OutputFormatError):
        mode.value(mode.task(ask, expect=Expect(Answer, repair=True, attempts=2)), ["mine"])
    assert heard == [["mine"], ["mine"]]


def test_a_malformed_output_does_not_trip_a_circuit(mode):
    circuit = CircuitBreaker(f"shape-{mode.name}", failure_threshold=1)
    for _ in range(3):
        with pytest.raises(OutputFormatError):
            mode.value(mode.task(lambda: "{}", expect="array", circuit=circuit))
    assert circuit.state == "closed"


def test_an_effect_stays_done_whatever_its_result_looks_like(mode):
    sent = []

    def send(order):
        sent.append(order)
        return json.dumps({"id": order})

    wrong = mode.task(send, effect=Effect(key="order:{order}"), expect="array", retry=3)
    right = mode.task(send, effect=Effect(key="order:{order}"), expect="object")
    with batch(f"shape-{mode.name}"):
        for _ in range(2):
            with pytest.raises(OutputFormatError):
                mode.value(wrong, 1)
        state = mode.state(right, 1)
        assert (state.name, state.result()) == ("Replayed", {"id": 1})
        assert mode.value(right, 2) == {"id": 2}
    assert sent == [1, 2]


def test_an_async_predicate():
    from prefect import flow

    async def good(value):
        return value > 1

    @resilient_task(expect=Expect(good, repair=True), retry=None)
    async def grows():
        before = previous_error()
        return 1 if before is None else 2

    @flow
    async def scenario():
        return await grows()

    import asyncio

    assert asyncio.run(scenario()) == 2
    with pytest.raises(ConfigurationError, match="good is async"):
        resilient_task(expect=good)(lambda: 1)


def test_mistakes_at_decoration():
    def chunks():
        yield 1

    def chunk():
        return 1

    with pytest.raises(ConfigurationError, match="is a generator"):
        resilient_task(expect="array")(chunks)
    with pytest.raises(ConfigurationError, match="leave repair out"):
        resilient_task(expect=Expect("array", repair=True), effect="external")(chunk)
    assert last_violations() == []
    assert previous_error() is None
