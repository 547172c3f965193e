"""`SpendCap`: the most that a call can cost is reserved, and settled to what it cost."""

import asyncio
import gc
import sys
import time
from types import SimpleNamespace as Object
from uuid import uuid4

import httpx
import pytest

from prefect_resilience import Hedge, SpendCap, SpendCapReachedError, classify, on, resilient, wiring
from prefect_resilience.durable.batches.edge import tags
from prefect_resilience.errors.exceptions import AttemptTimeout, ConfigurationError, StoreUnavailable
from prefect_resilience.guards.circuits.listeners import cap_listeners
from prefect_resilience.guards.circuits.registry import forget_circuits, link_to, read_documents
from prefect_resilience.guards.limits import line, spend, usage
from prefect_resilience.guards.limits.spend import PROCESS, most_of, price_of
from prefect_resilience.guards.limits.usage import Usage
from prefect_resilience.http import ResilientTransport
from tests.guards.limits.hanging import end_threads

MODEL = "gpt-4o"
MILLION = price_of(Usage(0, 1_000_000), MODEL) or 0.0  # USD


@pytest.fixture(autouse=True)
def own_store(monkeypatch):
    forget_circuits()
    monkeypatch.setenv("PREFECT_RESILIENCE_STORE_URL", f"memory://{uuid4().hex}")
    monkeypatch.setattr(spend, "PAUSE", 0.01)
    usage.shares.clear()
    yield
    assert line._lines.by_key == {}


@pytest.fixture
def told():
    events = []
    cap_listeners.add(events.append)
    yield events
    cap_listeners.remove(events.append)


def settled():
    end_threads()
    return next(iter(read_documents(spend.PREFIX, None)[0].values()))


def answer(tokens):
    return {"usage": {"completion_tokens": tokens}, "model": "gpt-4o-2024-08-06"}


async def slow(model=MODEL, max_tokens=100_000):
    await asyncio.sleep(3)


def asking(cap, give=lambda: answer(1_000)):
    @resilient(limits=cap, retry=None)
    def ask(model=MODEL, max_tokens=100_000):
        return give()

    return ask


# -- the most, and the price


def test_a_price_is_that_of_the_input_the_output_and_the_caches():
    assert price_of(Usage(0, 1_000_000), MODEL) == price_of(Usage(0, 1_000_000), f"openai/{MODEL}") == MILLION
    cached = price_of(Usage(1_000, 0, cache_read_tokens=1_000), MODEL)
    assert 0 < cached < price_of(Usage(1_000), MODEL)
    assert price_of(Usage(1), "no-such-model") is None
    at_others = ("anthropic.claude-3-5-sonnet-20241022-v2:0", "amazon.nova-pro-v1:0", "models/gemini-2.5-pro")
    assert None not in [price_of(Usage(1), model) for model in at_others]


MOST = {
    "parameters": ({"prompt": "é", "max_tokens": 7}, Usage(33, 7)),
    "a request": ({"body": {"max_completion_tokens": 7, "n": 3}}, Usage(36, 21)),
    "gemini": ({"body": {"generationConfig": {"maxOutputTokens": 7}}}, Usage(44, 7)),
    "gemini, many": ({"config": {"max_output_tokens": 7, "candidate_count": 2}}, Usage(58, 14)),
    "no limit": ({"max_tokens": -1, "n": 2}, None),
    "a text as n": ({"max_tokens": 7, "n": "2"}, Usage(27, 7)),
    "no maximum": ({"prompt": "a"}, None),
}


@pytest.mark.parametrize("form", MOST)
def test_the_most_that_a_call_can_use(form):
    arguments, most = MOST[form]
    assert most_of(arguments) == most


# -- a call


def test_a_call_is_settled_to_what_it_cost():
    ask = asking(SpendCap(usd=5))
    ask()
    spending = settled()
    assert spending["spent"] == pytest.approx(MILLION / 1_000)
    assert (spending["reserved"], spending["usd"], spending["scope"]) == ({}, 5, PROCESS)


def test_money_that_is_spent_stops_calls_with_one_event(told):
    seen = []
    stop = on("cap.reached", seen.append)
    cap = SpendCap(usd=2 * MILLION / 10, name="agents")
    ask = asking(cap, lambda: answer(60_000))
    for _ in range(2):
        ask()
        settled()
    for _ in range(3):
        with pytest.raises(SpendCapReachedError) as caught:
            ask()
    assert classify(caught.value).category == "resource_exhausted"
    assert (
        "the cap 'agents' of 2 USD a run has no room: 1.2000 USD are spent, 0.0000 USD are reserved, and"
        in str(caught.value)
    )
    assert "there is room in another run" in str(caught.value)
    assert [(spending["name"], spending["reached"]) for spending in told] == [("agents", True)]
    assert [(event.kind, event.name) for event in seen] == [("cap", "agents")]
    stop()
    asking(SpendCap(usd=5, name="agents"))()  # a larger cap of the same name goes on
    assert not settled()["reached"]


def test_only_runs_with_money_to_settle_are_remembered(monkeypatch):
    monkeypatch.setattr(usage, "MOST_SHARES", 2)
    for number in range(4):
        asking(SpendCap(usd=5, name=f"cap {number}"))()
        settled()
    assert len(usage.shares) == 2


def test_a_call_waits_for_what_running_calls_give_back():
    cap = SpendCap(usd=1.5 * MILLION / 10, per="day")

    @resilient(limits=cap, retry=None)
    async def ask(model=MODEL, max_tokens=100_000):
        await asyncio.sleep(0.1)
        return answer(10)

    async def many():
        await asyncio.gather(*(ask() for _ in range(4)))

    asyncio.run(many())
    assert settled()["spent"] == pytest.approx(4 * MILLION / 100_000)


def test_no_call_in_line_waits_longer_than_its_max_wait():
    async def many(cap):
        first = asyncio.create_task(cap(slow)())
        await asyncio.sleep(0.1)
        began = time.monotonic()
        refused = await asyncio.gather(*(cap(slow)() for _ in range(8)), return_exceptions=True)
        assert time.monotonic() - began < 2
        first.cancel()
        assert {type(error) for error in refused} == {SpendCapReachedError}
        assert "cost 1.0001 USD; there is room at midnight UTC" in str(refused[0])

    asyncio.run(many(SpendCap(usd=1.5 * MILLION / 10, per="day", max_wait=0.3)))


def test_what_a_call_reserved_while_it_was_cancelled_is_given_back(monkeypatch):
    async def cancel():
        task = asyncio.create_task(SpendCap(usd=5)(slow)())
        await asyncio.sleep(0.1)
        task.cancel()
        await asyncio.gather(task, return_exceptions=True)

    store = link_to(None).store()
    swap = store.swap
    monkeypatch.setattr(store, "swap", lambda *args, **options: time.sleep(0.2) or swap(*args, **options))
    asyncio.run(cancel())
    assert settled()["reserved"] == {}


def test_a_lost_answer_of_the_store_settles_nothing_twice(monkeypatch):
    def lose(*args, **options):
        swap(*args, **options)
        raise StoreUnavailable("the answer was lost")

    link = link_to(None)
    swap = link.store().swap
    asking(SpendCap(usd=5))()
    other = spend.Purse(next(iter(usage.shares)), settled())
    other.running["another call"] = 0.0
    other.ask("another call", 1.0, 5)
    asking(SpendCap(usd=5), lambda: monkeypatch.setattr(link.store(), "swap", lose))()
    settled()
    monkeypatch.setattr(link.store(), "swap", swap)
    monkeypatch.setattr(link, "rest_until", 0.0)
    asking(SpendCap(usd=5))()
    assert settled()["reserved"] == {"another call": 1.0}
    assert settled()["spent"] == pytest.approx(MILLION / 10 + 2 * MILLION / 1_000, abs=0.001)


def test_a_hedged_call_reserves_for_the_same_arguments():
    def ask(model=MODEL, max_tokens=1_000):
        calls.append(model)
        time.sleep(0.5 if len(calls) == 1 else 0)
        return answer(len(calls))

    calls: list[str] = []
    assert resilient(limits=SpendCap(usd=5), retry=None, hedge=Hedge(0.1))(ask)() == answer(2)


@pytest.mark.parametrize(("error", "parts"), [(ValueError(), 0), (AttemptTimeout(1), 1)])
def test_a_failed_call_costs_nothing_unless_it_timed_out(error, parts):
    def fail():
        raise error

    with pytest.raises(type(error)):
        asking(SpendCap(usd=5), fail)()
    assert settled()["spent"] == pytest.approx(parts * MILLION / 10, abs=0.001)
    with pytest.raises(type(error)):
        SpendCap(usd=5).call(lambda model, max_tokens, _: fail(), MODEL, 100_000, {(1, 2): 3})
    assert settled()["spent"] == pytest.approx(2 * parts * MILLION / 10, abs=0.001)


def test_a_transport_reads_the_request_and_the_response():
    def reply(request):
        return httpx.Response(200, json=answer(1_000))

    cap = SpendCap(usd=5)
    client = httpx.Client(transport=ResilientTransport(limits=cap, transport=httpx.MockTransport(reply)))
    client.post("http://service.test", json={"model": MODEL, "max_tokens": 100})
    client.post(f"http://service.test/v1/models/{MODEL}:ask", json={"config": {"max_output_tokens": 9}})
    assert settled()["spent"] == pytest.approx(2 * MILLION / 1_000)
    request = client.build_request("POST", "http://service.test", json={"model": MODEL, "max_tokens": 9})
    del request.extensions["timeout"]
    client.send(request, stream=True)  # never read, never closed
    gc.collect()
    assert settled()["reserved"] == {}


MISTAKES = [
    (lambda: SpendCap(usd=1).call(lambda: None), "needs the model of a call"),
    (lambda: SpendCap(usd=1).call(lambda model: None, MODEL), "needs the max_tokens of a call"),
    (lambda: asking(SpendCap(usd=1))(model="nosuch"), "knows no price of the model 'nosuch'"),
]


@pytest.mark.parametrize(("make", "says"), MISTAKES)
def test_a_mistake_is_one_sentence(make, says):
    with pytest.raises(ConfigurationError) as caught:
        make()
    assert says in str(caught.value)


def test_without_the_prices_an_error_says_what_to_install(monkeypatch):
    monkeypatch.setitem(sys.modules, "genai_prices", None)
    with pytest.raises(ConfigurationError, match=r"pip install 'prefect-resilience\[prices\]'"):
        asking(SpendCap(usd=1))()


def test_without_the_store_a_process_goes_on_with_what_it_knows():
    cap = SpendCap(usd=2 * MILLION / 10)
    ask = asking(cap, lambda: answer(60_000))
    ask()
    settled()
    link_to(None).store().close()
    ask()
    with pytest.raises(SpendCapReachedError):
        ask()


def test_a_subflow_without_the_api_counts_as_its_process(monkeypatch):
    def unavailable():
        raise StoreUnavailable("the API")

    monkeypatch.setattr(wiring, "run_contexts", lambda: (Object(), None))
    monkeypatch.setattr(tags, "pass_here", unavailable)
    asking(SpendCap(usd=5))()
    assert settled()["scope"] == PROCESS
