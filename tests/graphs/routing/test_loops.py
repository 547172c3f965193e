"""Loops: rounds until it is good enough, and what is told when it never is."""

import asyncio

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from prefect import task
from prefect.states import Completed

from prefect_resilience import (
    Backoff,
    ConditionError,
    NoProgress,
    Retry,
    RoundsExhausted,
    aiterate,
    iterate,
    path,
)
from prefect_resilience.errors.secrets.redact import register_secret
from prefect_resilience.graphs.routing.rounds import MOST_DETAILS
from prefect_resilience.guards.partials import LIMIT as PARTIAL
from tests.contexts import context_of
from tests.graphs.routing.scenes import drawn, in_flow


def looped(mode, step, *args, **options):
    """`iterate` with a plain step, `aiterate` with an async one."""
    if mode.isasync:
        return asyncio.run(aiterate(mode.function(step), *args, **options))
    return iterate(step, *args, **options)


def better(draft=None):
    return {"score": 0.25 + (draft["score"] if draft else 0)}


def test_rounds_until_it_is_good_enough(mode):
    done = looped(mode, better, path("score") >= 0.7, 10)
    assert done.value == {"score": 0.75}
    assert done.rounds == 3
    assert [(made.number, made.value) for made in done.iteration_history] == [
        (1, {"score": 0.25}),
        (2, {"score": 0.5}),
        (3, {"score": 0.75}),
    ]
    assert all(made.duration >= 0 and made.error is None for made in done.iteration_history)


def test_a_step_may_ask_for_the_round_and_the_history(mode):
    def step(value, *, round, history):
        assert [made.number for made in history] == list(range(1, round))
        return value * 10 + round

    assert looped(mode, step, lambda value: value > 1_000, 9, start=0).value == 1234


def test_a_step_that_must_get_something_gets_none_at_first(mode):
    given = []

    def step(previous):
        given.append(previous)
        return len(given)

    assert looped(mode, step, lambda value: value == 3, 9).rounds == 3
    assert given == [None, 1, 2]


def test_until_and_progress_may_be_async():
    async def good(value):
        return value["score"] >= 0.7

    async def mark(value):
        return value["score"]

    done = asyncio.run(aiterate(better, good, 10, mark))
    assert [made.progress for made in done.iteration_history] == [0.25, 0.5, 0.75]


@pytest.mark.requirement("001.07", "001.22")
def test_no_progress_ends_it(mode):
    scores = iter([1, 2, 2, 3, 3, 3, 4])

    def step():
        return {"score": next(scores), "words": object()}

    with pytest.raises(NoProgress) as caught:
        looped(mode, step, lambda value: False, 10, lambda value: value["score"])
    error = caught.value
    assert (error.rounds, error.value["score"], error.patience) == (6, 3, 2)
    assert str(error) == "the last 2 rounds of 6 changed nothing"
    assert [made.progress for made in error.iteration_history] == [1, 2, 2, 3, 3, 3]
    context = context_of(error)
    assert (context.category, context.reason, context.retryable) == ("no_progress", "execution_halted", False)
    assert context.details["rounds"] == 6
    assert context.details["iteration_history"][-1]["progress"] == "3"
    assert context.node_id == "step"


def test_patience_and_start(mode):
    with pytest.raises(NoProgress, match="the last round of 1 changed nothing"):
        looped(mode, lambda draft: draft, lambda value: False, 9, start="draft", patience=1)
    with pytest.raises(NoProgress) as caught:
        looped(mode, lambda: True, lambda value: False, 9, patience=4)
    assert caught.value.rounds == 5


def test_what_changed_within_one_object_has_changed(mode):
    state = {"notes": []}

    def step():
        state["notes"].append("more")
        return state

    assert looped(mode, step, lambda value: len(value["notes"]) == 5, 9).rounds == 5


def test_strictness_of_progress(mode):
    answers = iter([1, True, "1", 1.5, [1.5]])
    with pytest.raises(RoundsExhausted):
        looped(mode, lambda: next(answers), lambda value: False, 5, patience=1)


def test_rounds_that_are_used_up(mode):
    with pytest.raises(RoundsExhausted) as caught:
        looped(mode, better, path("score") >= 9, 3)
    error = caught.value
    assert str(error) == "until= did not hold after 3 rounds"
    assert (error.value, len(error.iteration_history)) == ({"score": 0.75}, 3)
    context = context_of(error)
    assert (context.category, context.reason) == ("resource_exhausted", "execution_halted")
    assert context.partial_output.content == {"score": 0.75}
    with pytest.raises(RoundsExhausted, match="did not hold after 1 round"):
        looped(mode, better, path("score") >= 9, 1)


@pytest.mark.requirement("001.14")
def test_an_error_in_a_round_is_raised_with_the_loop_around_it(mode):
    register_secret("s3cr3t-s3cr3t")

    def step(value=None, *, round):
        if round == 3:
            raise ConnectionRefusedError("no director")
        return {"draft": f"v{round}", "password": "s3cr3t-s3cr3t"}

    with pytest.raises(ConnectionRefusedError, match="no director") as caught:
        looped(mode, step, lambda value: False, 9)
    error = caught.value
    assert [made.number for made in error.iteration_history] == [1, 2, 3]
    assert [made.error is None for made in error.iteration_history] == [True, True, False]
    assert error.__notes__ == ["prefect-resilience: this error ended the loop: round 3 of step"]
    context = context_of(error)
    assert (context.category, context.kind, context.reason) == ("subtask", "transient", "subtask_failure")
    assert context.message == "round 3 of step failed: NETWORK_ERROR network: no director"
    assert (context.cause.category, context.cause.nesting_depth) == ("network", 1)
    assert context.details["failed_step"] == 3
    assert [each["round"] for each in context.details["iteration_history"]] == [1, 2, 3]
    assert context.partial_output.content["draft"] == "v2"
    assert "s3cr3t-s3cr3t" not in context.model_dump_json()


def test_loops_in_loops_count_their_depth():
    def inner():
        raise ValueError("deep")

    with pytest.raises(ValueError, match="deep") as caught:
        iterate(lambda: iterate(inner, bool, 3).value, bool, 3)
    context = context_of(caught.value)
    assert (context.nesting_depth, context.cause.nesting_depth, context.cause.cause.nesting_depth) == (
        0,
        1,
        2,
    )
    assert context.cause.cause.code == "ValueError"


def test_errors_of_until_and_progress_end_the_round_too(mode):
    with pytest.raises(ConditionError) as caught:
        looped(mode, better, path("grade") > 1, 9)
    assert caught.value.iteration_history[0].value == {"score": 0.25}
    with pytest.raises(KeyError) as caught:
        looped(mode, better, bool, 9, lambda value: value["grade"])
    assert context_of(caught.value).details["failed_step"] == 1


def test_the_history_is_bounded():
    with pytest.raises(RoundsExhausted) as caught:
        iterate(lambda *, round: f"{round:06}" * 1_000, lambda value: False, MOST_DETAILS + 10)
    history = caught.value.iteration_history
    assert len(history) == MOST_DETAILS + 10
    context = context_of(caught.value)
    assert len(context.model_dump_json()) < 200_000
    assert context.partial_output.truncated is False


def test_a_long_partial_output_is_cut_and_says_so():
    def step(value=None):
        if value:
            raise ValueError("second")
        return "x" * 200_000

    with pytest.raises(ValueError, match="second") as caught:
        iterate(step, lambda value: False, 9)
    partial = context_of(caught.value).partial_output
    assert (partial.truncated, partial.original_size, len(partial.content)) == (True, 200_002, PARTIAL)


@pytest.mark.smoke
@pytest.mark.api
def test_every_round_is_a_task_run(mode):
    def evaluate(draft=0):
        return draft + 1

    def own(draft=0):
        return Completed(name="Good", data=draft + 1)

    def body():
        first = iterate(evaluate, lambda value: value == 3, 9) if not mode.isasync else None
        return first, iterate(task(own), lambda value: value == 2, 9).value

    names = ["own[1]", "own[2]"] + ([] if mode.isasync else ["evaluate[1]", "evaluate[2]", "evaluate[3]"])
    (first, second), picture = drawn(body, names, mode)
    assert second == 2
    assert picture["own[2]"].state == "Good"
    if not mode.isasync:
        assert first.value == 3
        assert picture["evaluate[3]"].state == "Completed"


@pytest.mark.api
def test_a_resilient_task_as_step_keeps_its_policies_and_name(mode):
    from prefect import flow

    calls = []

    def flaky(draft=0):
        calls.append(draft)
        if len(calls) % 2:
            raise ConnectionResetError("cut")
        return draft + 1

    made = mode.task(flaky, retry=Retry(attempts=2, backoff=Backoff.none()), task_run_name="mine")
    if mode.isasync:

        @flow
        async def scenario():
            return await aiterate(made, lambda value: value == 2, 9)

        done = asyncio.run(scenario())
    else:
        done = in_flow(mode, lambda: iterate(made, lambda value: value == 2, 9))
    assert (done.value, done.rounds) == (2, 2)
    assert calls == [0, 0, 1, 1]


@pytest.mark.api
@pytest.mark.parametrize("as_task", [False, True])
def test_a_plain_step_does_not_hold_up_the_loop(as_task):
    """The step waits for something that only the event loop can do meanwhile."""
    import threading

    from prefect import flow

    gate = threading.Event()

    def step(draft=0):
        assert gate.wait(30)
        return draft + 1

    @flow
    async def scenario():
        asyncio.get_running_loop().call_later(0.01, gate.set)
        return (await aiterate(task(step) if as_task else step, lambda value: value == 2, 9)).value

    assert asyncio.run(scenario()) == 2


@settings(deadline=None)
@given(st.lists(st.integers(0, 2), min_size=1, max_size=12), st.integers(1, 4))
def test_it_ends_at_the_first_of_its_three_ends(values, patience):
    """Done, standing still, or used up: whichever comes first, and done before standing still."""
    made = iter(values)
    still, expected = 0, ("used up", len(values))
    for number, value in enumerate(values, 1):
        still = still + 1 if number > 1 and value == values[number - 2] else 0
        if value == 2:
            expected = ("done", number)
            break
        if still >= patience:
            expected = ("still", number)
            break
    try:
        ended = ("done", iterate(lambda: next(made), path("$") == 2, len(values), patience=patience).rounds)
    except NoProgress as error:
        ended = ("still", error.rounds)
    except RoundsExhausted as error:
        ended = ("used up", error.rounds)
    assert ended == expected
