"""`SpendCap`: the most that a call can cost is reserved, and settled to what it cost."""

import asyncio
import sys
import threading
from types import SimpleNamespace as Object
from uuid import uuid4

import httpx
import pytest

from prefect_resilience import SpendCap, SpendCapReachedError, classify, on, resilient, wiring
from prefect_resilience.durable.batches.edge import tags
from prefect_resilience.errors.exceptions import AttemptTimeout, ConfigurationError, StoreUnavailable
from prefect_resilience.guards.circuits.listeners import cap_listeners
from prefect_resilience.guards.circuits.registry import forget_circuits, link_to
from prefect_resilience.guards.limits import line, spend, usage
from prefect_resilience.guards.limits.spend import PROCESS, most_of, price_of, read_spending
from prefect_resilience.guards.limits.usage import Usage
from prefect_resilience.http import ResilientTransport

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
    for thread in threading.enumerate():
        if thread.name == "prefect-resilience-limits":
            thread.join()
    return read_spending()[0]


def answer(tokens):
    return {"usage": {"completion_tokens": tokens}, "model": "gpt-4o-2024-08-06"}


def asking(cap, give=lambda: answer(1_000)):
    @resilient(limits=cap, retry=None)
    def ask(model=MODEL, max_tokens=100_000):
        return give()

    return ask


# -- the most, and the price


def test_a_price_is_that_of_the_input_the_output_and_the_caches():
    assert price_of(Usage(0, 1_000_000), MODEL) == price_of(Usage(0, 1_000_000), f"openai/{MODEL}") == MILLION
    cached = price_of(Usage(1_000, 0, cache_read=1_000), MODEL)
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
    "no number": ({"max_tokens": "7"}, None),
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
    assert (spending["reserved"], spending["usd"], spending["scope"]) == (0, 5, PROCESS)


def test_calls_that_end_at_once_are_settled_together():
    async def many(ask):
        await asyncio.gather(*(ask() for _ in range(20)))

    @resilient(limits=SpendCap(usd=100), retry=None)
    async def ask(model=MODEL, max_tokens=100_000):
        return answer(1_000)

    asyncio.run(many(ask))
    assert settled()["spent"] == pytest.approx(20 * MILLION / 1_000)
    for purse in usage.shares.values():
        purse._settle_all()  # as the later ones of them
    assert settled()["spent"] == pytest.approx(20 * MILLION / 1_000)


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


def test_a_call_waits_for_what_running_calls_give_back(monkeypatch):
    cap = SpendCap(usd=1.5 * MILLION / 10, per="day")

    @resilient(limits=cap, retry=None)
    async def ask(model=MODEL, max_tokens=100_000):
        await asyncio.sleep(0.1)
        return answer(10)

    async def many():
        await asyncio.gather(*(ask() for _ in range(4)))

    asyncio.run(many())
    assert settled()["spent"] == pytest.approx(4 * MILLION / 100_000)
    monkeypatch.setattr(spend, "WAIT_SECONDS", 0.0)

    async def impatient():
        first = asyncio.create_task(ask())
        await asyncio.sleep(0.05)
        with pytest.raises(SpendCapReachedError, match=r"are reserved.*at midnight UTC"):
            await ask()
        await first

    asyncio.run(impatient())


FAILED = {
    "failed": (ValueError(), 0),
    "a timeout": (AttemptTimeout(1), 1),
    "429": (httpx.HTTPStatusError("429", request=Object(), response=Object(status_code=429, headers={})), 0),
}


@pytest.mark.parametrize("way", FAILED)
def test_a_failed_call_costs_nothing_unless_it_timed_out(way):
    error, parts = FAILED[way]

    def fail():
        raise error

    with pytest.raises(type(error)):
        asking(SpendCap(usd=5), fail)()
    assert settled()["spent"] == pytest.approx(parts * MILLION / 10, abs=0.001)


def test_a_transport_reads_the_request_and_the_response():
    def reply(request):
        return httpx.Response(200, json=answer(1_000))

    cap = SpendCap(usd=5)
    client = httpx.Client(transport=ResilientTransport(limits=cap, transport=httpx.MockTransport(reply)))
    client.post("http://service.test", json={"model": MODEL, "max_tokens": 100})
    client.post(f"http://service.test/v1/models/{MODEL}:ask", json={"config": {"max_output_tokens": 9}})
    assert settled()["spent"] == pytest.approx(2 * MILLION / 1_000)


MISTAKES = [
    (lambda: SpendCap(usd=0), "write more than 0"),
    (lambda: SpendCap(usd=1, per="week"), "unknown value 'week'"),
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
