"""What an effect gives back when it is replayed, and the key that goes along with it."""

from __future__ import annotations

import asyncio
import contextvars
import threading
from typing import Any

import httpx
import pytest
from prefect import flow, task
from pydantic import BaseModel

from prefect_resilience import Bulkhead, ConfigurationError, Hedge, ResilientTask, Timeout, resilient_task
from prefect_resilience.durable.effects.ledger import open_ledger
from prefect_resilience.effects import Effect, batch, batch_status, idempotency_key, send_idempotency_key
from prefect_resilience.errors.exceptions import ResultNotKept


class Receipt(BaseModel):
    id: str
    lines: list[int]


class Odd:
    def __init__(self, x):
        self.x = x

    def __eq__(self, other):
        return self.x == other.x


def typed(order: int) -> Receipt:
    return Receipt(id=f"r{order}", lines=[order])


def json_like(order):
    return {"id": order, "lines": [1.5, None, True]}


def a_tuple(order):
    return order, {1, 2}


def an_object(order):
    return Odd(order)


def a_long_one(order):
    return "x" * 1_100_000


def nothing(order):
    return None


@pytest.mark.api
@pytest.mark.parametrize("body", [typed, json_like, a_tuple, an_object, a_long_one, nothing])
def test_a_replay_gives_what_the_first_run_gave(mode, body):
    made = mode.task(body, effect=Effect(key="k:{order}"), retry=None)
    with batch("b"):
        first = mode.value(made, 1)
        again = mode.state(made, 1)
    assert again.name == "Replayed"
    assert again.result() == first == body(1)
    assert type(again.result()) is type(first)
    if not mode.isasync:  # whose bodies have no return type
        shown = {typed: {"id": "r1", "lines": [1]}, json_like: json_like(1)}.get(body)
        assert batch_status("b").effects[0].result == shown


@pytest.mark.api
def test_a_result_that_is_gone(mode, monkeypatch, tmp_path):
    made = mode.task(an_object, effect=Effect(key="k:{order}"), retry=None, fallback=lambda: "pigeon")
    with batch("b"):
        assert mode.value(made, 1) == Odd(1)
        elsewhere = made.with_options(result_storage=None)
        ledger = open_ledger()
        ((place, found),) = ledger.store.scan("effects/b/")
        lost = {**found.value, "result": {"as": "stored", "ref": "no-such-result"}}
        ledger.store.swap(place, found.version, lost)
        with pytest.raises(ResultNotKept, match="is done, but its result cannot be restored"):
            mode.value(elsewhere, 1)


@pytest.mark.api
def test_a_result_that_cannot_be_kept(mode):
    def a_lock(order):
        return threading.Lock()

    made = mode.task(a_lock, effect=Effect(key="k:{order}"), retry=None)
    with batch("b"):
        assert mode.value(made, 1) is not None
        with pytest.raises(ResultNotKept, match="it is not JSON, and the result storage failed"):
            mode.value(made, 1)


@pytest.mark.api
def test_a_replay_is_the_real_result_for_what_comes_after(seen):
    """It goes to `.submit`ted tasks, states and Prefect's own cache as the first one did."""
    calls = []

    @resilient_task(effect=Effect(key="k:{order}", repeat="replay"), persist_result=True)
    def send(order):
        calls.append(order)
        return {"id": order}

    @task
    def after(sent):
        return sent["id"] + 1

    @flow
    def scenario():
        first = send.submit(1)
        followed = after.submit(first).result()
        first.wait()  # from here on it knows its state without asking the API
        return followed, first.state.name, send.submit(1, return_state=True).name, send(1)

    with batch("b"):
        assert scenario() == (2, "Completed", "Replayed", {"id": 1}), (
            "the ledger answers, not Prefect's cache"
        )
        assert scenario() == (2, "Replayed", "Replayed", {"id": 1})
    assert calls == [1]


# -- keys


def test_the_key_is_known_only_inside():
    with pytest.raises(ConfigurationError, match="is for code inside an effect"):
        idempotency_key()


def in_a_thread() -> str:
    heard: list[str] = []
    context = contextvars.copy_context()
    thread = threading.Thread(target=lambda: heard.append(context.run(idempotency_key)))
    thread.start()
    thread.join()
    return heard[0]


@pytest.mark.api
@pytest.mark.parametrize("timeout", [None, 20, Timeout(60, mode="process")])
def test_the_key_reaches_whatever_the_code_runs_in(mode, timeout):
    def send(order):
        return [idempotency_key(), in_a_thread()]

    made = mode.task(send, effect=Effect(key="k:{order}"), timeout=timeout, retry=None)
    with batch("b"):
        assert mode.value(made, 1) == ["k:1", "k:1"]
    with pytest.raises(ConfigurationError):
        idempotency_key()


@pytest.mark.api
async def test_the_header_is_sent_by_both_clients(receiver):
    hooks = {"request": [send_idempotency_key]}

    @resilient_task(effect=Effect(key="k:{n}"), retry=None)
    async def send(n):
        async with httpx.AsyncClient(event_hooks=hooks) as client:
            await client.post(receiver.url)
            await asyncio.to_thread(httpx.Client(event_hooks=hooks).post, receiver.url)
            await client.post(receiver.url, headers={"Idempotency-Key": "mine"})
            seen = (await client.get(receiver.url)).request.headers
        return "Idempotency-Key" in seen

    @flow
    async def scenario():
        return await send(1)

    assert await scenario() is False
    async with httpx.AsyncClient(event_hooks=hooks) as client:
        await client.post(receiver.url)
    assert receiver.calls == ["k:1", "k:1", "mine", ""]
    assert repr(send_idempotency_key) == "send_idempotency_key"


# -- mistakes


def work(order): ...
async def awork(order): ...
def gen(order):
    yield 1


def verify(key, order): ...
async def averify(key): ...
def verify_more(key, region): ...
def verify_any(key, **parameters): ...
def verify_nothing(): ...


MISTAKES: dict[str, tuple[Any, Any, str]] = {
    "number": (work, 3, "effect=3 is not an effect"),
    "kind": (work, "externl", "unknown value 'externl'; did you mean 'external'"),
    "option": (work, {"kind": "external", "keys": "x"}, "did you mean 'key'"),
    "field": (work, Effect(key="invoice:{ordr}"), "did you mean 'order'"),
    "braces": (work, {"key": "invoice:{order"}, "braces in the effect key"),
    "no key": (work, {"key": ""}, "write a template such as"),
    "generator": (gen, "external", "needs a function with one result, but 'gen' is a generator"),
    "async verify": (work, Effect(verify=averify), "verify=averify is async but 'work' is not"),
    "verify that needs more": (work, Effect(verify=verify_more), "needs 'region'"),
    "verify without a key": (
        work,
        Effect(verify=verify_nothing),
        r"takes no arguments: write def verify_nothing\(key",
    ),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_mistakes_are_one_sentence(name):
    fn, effect, says = MISTAKES[name]
    with pytest.raises(ConfigurationError, match=says) as caught:
        resilient_task(effect=effect)(fn)
    assert "\n" not in str(caught.value)


def test_a_hedge_is_a_second_call():
    with pytest.raises(ConfigurationError, match="hedge= makes a slow call a second time"):
        resilient_task(effect="external", hedge=Hedge(after=1))(awork)
    assert resilient_task(effect="idempotent", hedge=Hedge(after=1))(awork).guard.effect.kind == "idempotent"


@pytest.mark.parametrize("batch_id", ["", "  ", "x" * 201, None, 3])
def test_ids_of_batches(batch_id):
    with pytest.raises(ConfigurationError, match="a batch needs an id"), batch(batch_id):
        pass
    with pytest.raises(ConfigurationError, match="a batch needs an id"):
        batch_status(batch_id)


def test_what_may_be_written():
    many = resilient_task(effect=Effect(key="k", verify=verify_any), limits=Bulkhead(3))(lambda **them: 1)
    assert many.guard.effect.verify_arguments({"a": 1, "b": 2}) == {"a": 1, "b": 2}
    resilient_task(effect=Effect(verify=averify))(awork)
    assert resilient_task(effect={"kind": "conditional"})(work).guard.effect == Effect(kind="conditional")
    made = resilient_task(effect="external")(work)
    assert made.with_options(effect=None).guard.effect is None
    assert made.with_options(retry=None).guard.effect == Effect()
    wrapped = ResilientTask.wrap(task(work), effect=Effect(key="{order}", verify=verify))
    assert wrapped.guard.effect.fields == ("order",)
    assert Effect().external
    assert Effect(key=None) == Effect()
    assert Effect.model_validate_json('{"kind": "external", "key": "k"}') == Effect(key="k")
