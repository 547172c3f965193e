"""What a task returns that is no result, in real runs: awaitables, generators and failed states."""

import asyncio
import functools

import pytest
from prefect import flow, task
from prefect.states import Cancelled, Completed, Crashed, Failed

from prefect_resilience import (
    Backoff,
    ConfigurationError,
    Effect,
    InDoubt,
    NotDone,
    Retry,
    batch,
    batch_status,
    dead_letters,
    error_context,
    resilient_flow,
    resilient_task,
)

pytestmark = pytest.mark.api

FAST = Retry(attempts=3, backoff=Backoff.none())
PAYMENT = Effect(kind="external", key="pay:{x}")
ONE_REQUEST = Effect(kind="external", key="pay:{x}", one_request=True)


def states_of(batch_id):
    return [effect.state for effect in batch_status(batch_id).effects]


async def post(x):
    await asyncio.sleep(0)
    return f"sent {x}"


class Payer:
    def __call__(self, x):
        return post(x)


class AsyncPayer:
    async def __call__(self, x):
        return await post(x)


def pay(x):
    return post(x)


async def forgets_await(x):
    return post(x)


@functools.wraps(post)
def timed(x):
    return post(x)


async def chunks(x):
    yield x


REFUSED = {
    "a function": pay,
    "an object": Payer(),
    "a partial": functools.partial(Payer()),
    "a wrapper": timed,
    "a single dispatch": functools.singledispatch(post),
    "a generator": lambda x: (item for item in [x]),
    "an async generator": lambda x: chunks(x),
}
AWAITED = {
    "an async object": AsyncPayer(),
    "a partial of it": functools.partial(AsyncPayer()),
    "a forgotten await": forgets_await,
}
OPTIONS = {
    "bare": {},
    "fallback": {"fallback": lambda x: "instead"},
    "circuit": {"circuit": "pay"},
    "timeout": {"timeout": 60},
    "effect": {"effect": PAYMENT},
    "retries": {"retries": 2},
}


# Each kind as an effect, and each option around a function that is called or submitted
@pytest.mark.parametrize(
    ("kind", "option", "submitted"),
    [
        *((kind, "effect", False) for kind in REFUSED),
        *(("a function", option, True) for option in OPTIONS),
        ("a generator", "bare", True),
    ],
)
def test_a_plain_task_that_returns_unfinished_work_is_refused(kind, option, submitted):
    made = resilient_task(name="pay", dead_letter=True, **OPTIONS[option])(REFUSED[kind])

    @flow
    async def program():
        with batch(f"refused {kind} {option} {submitted}"):
            state = made.submit(7, return_state=True) if submitted else made(7, return_state=True)
        assert state.is_failed()
        await state.result()  # pyright: ignore[reportGeneralTypeIssues]

    with pytest.raises(ConfigurationError, match=r"declare it `async def`|yield"):
        asyncio.run(program())
    assert "done" not in states_of(f"refused {kind} {option} {submitted}")


@pytest.mark.parametrize(
    ("kind", "option"),
    [*((kind, "effect") for kind in AWAITED), *(("an async object", one) for one in OPTIONS)],
)
def test_what_shows_that_it_is_async_is_awaited(kind, option):
    made = resilient_task(name="pay", **OPTIONS[option])(AWAITED[kind])

    @flow
    async def program():
        with batch(f"awaited {kind} {option}"):
            return [await made(7), await made.with_options(name="pay")(8)]

    assert asyncio.run(program()) == ["sent 7", "sent 8"]
    if option == "effect":
        assert states_of(f"awaited {kind} {option}") == ["done", "done"]


@task
def failing_sub(x):
    raise ConnectionRefusedError("no")


@flow
def failing_flow(x):
    raise ConnectionRefusedError("no")


TRANSIENT = {
    "failed": lambda x: Failed(data=ConnectionRefusedError("no")),
    "failed, by its message": lambda x: Failed(name="Declined", message="503 Service Unavailable"),
    "crashed": lambda x: Crashed(message="the process died"),
    "a subflow": lambda x: failing_flow(x, return_state=True),
    "a task": lambda x: failing_sub(x, return_state=True),
    "submitted tasks": lambda x: [failing_sub.submit(x, return_state=True)],
    "one of two": lambda x: (Completed(data=1), Failed(data=ConnectionRefusedError("no"))),
}


def twice(make):
    calls = []

    def pay(x):
        calls.append(x)
        return "sent" if len(calls) > 2 else make(x)

    return pay, calls


@pytest.mark.parametrize("kind", TRANSIENT)
def test_in_the_end_a_letter_is_written_and_the_state_is_what_prefect_makes_of_it(mode, kind):
    pay, calls = twice(TRANSIENT[kind])
    name = f"finally {kind} {mode.name}"
    made = mode.task(pay, name=name, retry=Retry(attempts=2, backoff=Backoff.none()), dead_letter=True)
    state = mode.state(made, 7)
    plain = mode.state(task(mode.function(TRANSIENT[kind])), 7)
    assert (state.type, state.name, state.message) == (plain.type, plain.name, plain.message)
    assert len(calls) == 2
    (letter,) = dead_letters.list(task=name)
    assert letter.attempts == 2
    assert letter.category in ("network", "unavailable", "agent_crash")


def test_a_cancelled_state_is_not_retried_and_leaves_no_letter(mode):
    pay, calls = twice(lambda x: Cancelled(message="by hand"))
    name = f"cancelled {mode.name}"
    state = mode.state(mode.task(pay, name=name, retries=3, dead_letter=True), 7)
    assert (state.name, state.message, len(calls)) == ("Cancelled", "by hand", 1)
    assert error_context(state).category.value == "cancelled"
    assert dead_letters.list(task=name) == []


@pytest.mark.parametrize("kind", ["failed", "a subflow", "one of two"])
def test_an_effect_that_returns_a_failed_state_is_not_done(mode, kind):
    pay, calls = twice(TRANSIENT[kind])
    made = mode.task(pay, retry=FAST, effect=Effect(key="pay:{x}", verify=lambda key: NotDone()))
    with batch(f"not done {kind} {mode.name}"):
        assert mode.value(made, 7) == "sent"
    assert len(calls) == 3
    assert states_of(f"not done {kind} {mode.name}") == ["done"]


@pytest.mark.parametrize("kind", ["crashed", "a task", "submitted tasks"])
def test_an_effect_that_nothing_proves_is_in_doubt_in_each_pass(mode, kind):
    pay, calls = twice(TRANSIENT[kind])
    made = mode.task(pay, retry=FAST, effect=PAYMENT, persist_result=True)
    for _ in range(2):
        with batch(f"in doubt {kind} {mode.name}"), pytest.raises(InDoubt):
            mode.value(made, 7)
    assert len(calls) == 1
    assert states_of(f"in doubt {kind} {mode.name}") == ["unknown"]


def test_a_later_pass_of_the_flow_makes_the_call_again(mode):
    """Prefect would find the returned state in its cache, and make it a completed one."""
    passes, calls = [], []

    def pay(x):
        calls.append(x)
        return "sent" if len(calls) > 1 else Failed(message="declined")

    made = mode.task(pay, persist_result=True)

    @flow(retries=1)
    def program():
        passes.append(1)
        outcome = made(7) if not mode.isasync else asyncio.run(made(7))
        if len(passes) == 1:
            raise ConnectionError("a later step")
        return outcome

    assert program() == "sent"
    assert len(calls) == 2


def test_a_completed_state_keeps_its_name_and_gives_its_data_to_the_ledger(mode):
    calls = []

    def pay(x):
        calls.append(x)
        return Completed(name="Paid", message="by card", data={"id": x})

    made = mode.task(pay, effect=ONE_REQUEST)
    with batch(f"completed {mode.name}"):
        first, second = mode.state(made, 7), mode.state(made, 7)
    assert (first.name, first.message, first.result()) == ("Paid", "by card", {"id": 7})
    assert (second.name, second.result(), len(calls)) == ("Replayed", {"id": 7}, 1)


def test_a_flow_that_returns_a_failed_state_has_failed():
    @resilient_flow
    def program():
        return Failed(message="503 Service Unavailable")

    assert program(return_state=True).is_failed()
