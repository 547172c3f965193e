"""`TokenLimit`: what calls reserve, what they used, and the bucket of the fleet."""

import asyncio
import math
from contextlib import suppress
from types import SimpleNamespace as Object
from uuid import uuid4

import pytest
from hypothesis import given
from hypothesis import strategies as st
from openai.types import CompletionUsage

from prefect_resilience import Hedge, TokenLimit, TokenLimitedError, classify, resilient
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.guards.circuits.registry import forget_circuits, link_to, read_documents
from prefect_resilience.guards.limits import line, tokens
from prefect_resilience.guards.limits.tokens import (
    BURST_SECONDS,
    Account,
    grant,
    new_bucket,
    pace_of,
    wait_of,
)
from prefect_resilience.guards.limits.usage import Usage, key_of, read_usage, shares
from tests.guards.limits.hanging import end_threads


@pytest.fixture(autouse=True)
def own_store(monkeypatch):
    forget_circuits()
    monkeypatch.setenv("PREFECT_RESILIENCE_STORE_URL", f"memory://{uuid4().hex}")
    monkeypatch.setattr(Account, "pause", 0.0)
    shares.clear()
    yield
    end_threads()
    assert line._lines.by_key == {}


def another(name: str, per_minute: int) -> Account:
    """The account of another process."""
    return Account(key_of(tokens.PREFIX, name), new_bucket(name, per_minute))


def used(limit: TokenLimit) -> int:
    """The tokens that calls of this process used, as the store has them."""
    end_threads()
    shares[key_of(tokens.PREFIX, limit.name)].settle_all()  # the store may have been away
    buckets, _ = read_documents(tokens.PREFIX, None)
    return next(bucket["used"] for bucket in buckets.values() if bucket["name"] == limit.name)


# -- the reader


class Hostile:
    @property
    def usage(self):
        raise RuntimeError


ANTHROPIC = {"input_tokens": 10, "output_tokens": 1, "cache_read_input_tokens": 30}
FORMS = {
    "openai chat": (
        {"usage": {"prompt_tokens": 9, "completion_tokens": 12, "total_tokens": 21}},
        Usage(9, 12),
    ),
    "openai cached": (
        {"usage": {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}}},
        Usage(9, 0, 4, 0),
    ),
    "openai object": (
        Object(usage=CompletionUsage(prompt_tokens=9, completion_tokens=12, total_tokens=21)),
        Usage(9, 12),
    ),
    "openai responses": (
        {"usage": {"input_tokens": 9, "output_tokens": 2, "input_tokens_details": {"cached_tokens": 1}}},
        Usage(9, 2, 1),
    ),
    "openai responses, last event": (
        {"type": "response.completed", "response": {"usage": {"input_tokens": 9}}},
        Usage(9),
    ),
    "openai embeddings": ({"usage": {"total_tokens": 8}}, Usage(8)),
    "anthropic": (
        {"usage": {**ANTHROPIC, "cache_creation_input_tokens": 5}},
        Usage(45, 1, 30, 5),
    ),
    "anthropic, first event": ({"message": {"usage": ANTHROPIC}}, Usage(40, 1, 30)),
    "gemini": (
        {
            "usageMetadata": {
                **{"promptTokenCount": 9, "candidatesTokenCount": 2, "thoughtsTokenCount": 5},
                **{"toolUsePromptTokenCount": 1, "cachedContentTokenCount": 3},
            },
        },
        Usage(10, 7, 3),
    ),
    "gemini, a list of chunks": (
        [{"usageMetadata": {"promptTokenCount": 9}}, {"usageMetadata": {"candidatesTokenCount": 3}}],
        Usage(9, 3),
    ),
    "no usage": ({"choices": []}, None),
    "not counts": ({"usage": {"prompt_tokens": "9", "completion_tokens": True}}, None),
    "an object that cannot be read": (Hostile(), None),
}


@pytest.mark.parametrize("form", FORMS)
def test_one_reader_for_the_forms_of_all_providers(form):
    answer, usage = FORMS[form]
    assert read_usage(answer) == usage


# -- a call is settled

WHOLE = {"usage": {"prompt_tokens": 10, "completion_tokens": 32}}
ANSWERS = {
    "usage": (WHOLE, {}, 42),
    "more than was reserved": ({"usage": {"prompt_tokens": 900}}, {}, 900),
    "no usage": ("a text", {}, 100),
    "a function": ("a text", {"usage": len}, 6),
    "a function with a form": (WHOLE, {"usage": lambda answer: answer["usage"]}, 42),
    "a function that fails": (WHOLE, {"usage": lambda answer: answer.cost}, 100),
    "less than nothing": (WHOLE, {"usage": lambda _: -5}, 100),
    "no number": (WHOLE, {"usage": lambda _: math.nan}, 100),
}


@pytest.mark.parametrize("form", ANSWERS)
def test_an_answer_is_settled(form):
    answer, options, counted = ANSWERS[form]
    limit = TokenLimit("ask", per_minute=60_000, estimate=100, **options)
    assert resilient(limits=limit)(lambda: answer)() is answer
    assert used(limit) == counted


def generator(*chunks, error=None):
    yield from chunks
    if error:
        raise error


async def agenerator(*chunks):
    for chunk in chunks:
        yield chunk


async def whole(fail=None):
    await asyncio.sleep(0)
    if fail:
        raise fail
    return WHOLE


async def drain(chunks):
    return [chunk async for chunk in chunks]


WAYS = {
    "call": lambda limit: limit.call(lambda: WHOLE),
    "acall": lambda limit: asyncio.run(limit.acall(whole)),
    "a decorated function": lambda limit: limit(lambda: WHOLE)(),
    "a decorated coroutine": lambda limit: asyncio.run(limit(whole)()),
    "a decorated generator": lambda limit: list(limit(generator)("a", WHOLE)),
    "a decorated async generator": lambda limit: asyncio.run(drain(limit(agenerator)("a", WHOLE))),
    "a resilient coroutine": lambda limit: asyncio.run(resilient(limits=limit)(whole)()),
    "a resilient generator": lambda limit: list(resilient(limits=limit)(generator)("a", WHOLE)),
    "an async stream": lambda limit: asyncio.run(drain(resilient(limits=limit)(agenerator)("a", WHOLE))),
    "a hedge": lambda limit: resilient(limits=limit, hedge=Hedge(5))(lambda: WHOLE)(),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_call_is_settled(way):
    limit = TokenLimit("ask", per_minute=60_000, estimate=lambda **_: 500)
    WAYS[way](limit)
    assert used(limit) == 42


def fail(error):
    raise error


def block(limit):
    with limit:
        pass


def close_early(limit):
    chunks = resilient(limits=limit)(generator)("a", {"usage": {"prompt_tokens": 7}}, "b")
    assert [next(chunks), next(chunks)]
    chunks.close()


def break_after(chunk):
    return lambda limit: list(resilient(limits=limit)(generator)(chunk, error=OSError()))


CUT = {
    "a block": (block, 100),
    "failed": (lambda limit: resilient(limits=limit)(fail)(ValueError()), 0),
    "timed out": (lambda limit: limit.call(fail, TimeoutError()), 100),
    "cancelled": (lambda limit: asyncio.run(limit.acall(whole, asyncio.CancelledError())), 0),
    "a stream closed early": (close_early, 100),
    "a stream that broke": (break_after(WHOLE), 100),
    "a stream that broke after much": (break_after({"usage": {"output_tokens": 300}}), 300),
}


@pytest.mark.parametrize("way", CUT)
def test_a_failed_call_has_used_nothing_and_a_cut_answer_what_it_reserved(way):
    limit = TokenLimit("ask", per_minute=60_000, estimate=100)
    call, counted = CUT[way]
    with suppress(ValueError, OSError, asyncio.CancelledError):
        call(limit)
    assert used(limit) == counted


# -- what is reserved


def test_a_call_reserves_what_such_calls_usually_use():
    limit = TokenLimit("ask", per_minute=500_000)
    account = Account.of(key_of(tokens.PREFIX, "ask"), new_bucket("ask", 500_000))
    assert account.usual() == 5_000
    for size in range(1, 101):
        limit.call(lambda size=size: {"usage": {"prompt_tokens": size}})
    assert account.usual() == 95
    used(limit)
    other = another("ask", 500_000)
    assert other.usual() == 5_000
    other.ask(1, 0, math.inf)
    assert other.usual() == 95


def test_an_estimate_gets_the_arguments_that_it_names():
    limit = TokenLimit("ask:{model}", per_minute=60_000, estimate=lambda prompt, most: len(prompt) + most)

    @resilient(limits=limit)
    def ask(prompt, model, most=50):
        return None

    ask("four", model="m")
    assert used(TokenLimit("ask:m", per_minute=60_000)) == 54
    of_others = TokenLimit("others", per_minute=60_000, estimate=lambda prompt, most: len(prompt) + most)
    of_others(lambda prompt, **options: None)("four", most=9)
    assert used(of_others) == 13


def test_a_decorated_generator_is_still_one():
    def echo():
        heard = yield "a"
        yield heard
        return "end"

    def around():
        ends.append((yield from TokenLimit("ask", per_minute=60_000)(echo)()))

    ends: list[str] = []
    chunks = around()
    assert [next(chunks), chunks.send("b"), next(chunks, None), ends] == ["a", "b", None, ["end"]]


MISTAKES = [
    (lambda: TokenLimit("ask", per_minute=10, estimate=11).call(int), "there will never be room for it"),
    (
        lambda: TokenLimit("ask", per_minute=10, estimate=lambda: "3").call(whole.__name__.upper),
        "needs '3'",
    ),
    (lambda: TokenLimit("ask", per_minute=10, estimate=lambda: -1).call(lambda: 1), "needs -1"),
]


@pytest.mark.parametrize(("make", "says"), MISTAKES)
def test_a_mistake_is_one_sentence(make, says):
    with pytest.raises(ConfigurationError) as caught:
        make()
    assert says in str(caught.value)


def test_functions_are_names_in_json():
    written = TokenLimit("ask", per_minute=10, estimate=5, usage=whole).model_dump(mode="json")
    assert (written["estimate"], written["usage"]) == (5, "whole")


# -- the wait


def test_an_error_says_when_there_is_room():
    limit = TokenLimit("ask", per_minute=60_000, estimate=9_600, max_wait=0)
    limit.call(int)
    with pytest.raises(TokenLimitedError) as caught:
        limit.call(int)
    assert "allows 60000 tokens a minute: there will be room for the 9600 tokens of this call in " in str(
        caught.value
    )
    assert 7 < caught.value.retry_after < 10
    info = classify(caught.value)
    assert (info.category, info.retry_after) == ("rate_limit", caught.value.retry_after)


def test_callers_wait_in_order_and_are_served_from_what_others_give_back():
    limit = TokenLimit("ask", per_minute=6_000, estimate=960)
    ends: list[int] = []

    async def ask(number):
        async def answer():
            await asyncio.sleep(0.4 if number == 0 else 0)
            ends.append(number)
            return {"usage": {"prompt_tokens": 0}}

        return await limit.acall(answer)

    async def all_of():
        await asyncio.gather(*(ask(number) for number in range(4)))

    asyncio.run(asyncio.wait_for(all_of(), 9))  # without what was given back: 30 s
    assert ends == [0, 1, 2, 3]


def test_a_caller_behind_the_first_one_waits_no_longer_than_its_max_wait():
    patient = TokenLimit("ask", per_minute=6_000, estimate=960)

    async def both():
        first = [asyncio.create_task(patient.acall(asyncio.sleep, 0)) for _ in range(2)]
        await asyncio.sleep(0.1)
        with pytest.raises(TokenLimitedError) as caught:
            await TokenLimit("ask", per_minute=6_000, estimate=940, max_wait=0.05).acall(whole)
        assert caught.value.retry_after >= 10  # the one in front of it needs as long as it does
        for task in first:
            task.cancel()
        await asyncio.gather(*first, return_exceptions=True)

    asyncio.run(both())


# -- the bucket

steps = st.lists(st.tuples(st.floats(0, 30), st.integers(1, 5_000)), min_size=1, max_size=40)


@given(steps)
def test_no_window_has_more_than_the_pace_the_burst_and_one_grant(asked):
    bucket, now, starts = new_bucket("ask", 60_000), 1e9, []
    for step, size in asked:
        now += step
        wait = wait_of(bucket, now)
        bucket = grant(bucket, size, now)
        starts.append((now + wait, size))
    for first, (begin, _) in enumerate(starts):
        for last in range(first, len(starts)):
            end, size = starts[last]
            total = sum(tokens_ for _, tokens_ in starts[first : last + 1])
            assert total - size <= pace_of(60_000) * (end - begin + BURST_SECONDS) + 1


def test_the_tokens_of_a_dead_process_are_back_in_time(monkeypatch):
    dead, living = another("ask", 60_000), another("ask", 60_000)
    assert dead.ask(2_400, 0, math.inf) == 0
    wait = living.ask(960, 0, math.inf)
    assert 0.8 < wait < 3
    now = tokens.monotonic()
    monkeypatch.setattr(tokens, "monotonic", lambda: now + wait + tokens.LEASE_SECONDS + 1)
    assert dead.holds(1)
    assert not dead.holds(1_000_000)
    monkeypatch.setattr(tokens, "monotonic", lambda: now + wait + 3 * tokens.LEASE_SECONDS)
    assert not dead.holds(1)


@pytest.mark.parametrize(("reserved", "used", "least", "most"), [(50_000, 1, 0, 1), (1, 30_000, 20, 35)])
def test_the_fleet_gets_what_was_not_used_and_pays_for_what_was(reserved, used, least, most):
    limit = TokenLimit("ask", per_minute=60_000, estimate=reserved)
    limit.call(lambda: {"usage": {"prompt_tokens": used}})
    end_threads()
    documents, now = read_documents(tokens.PREFIX, None)
    (bucket,) = documents.values()
    assert bucket["samples"] == [used]
    assert least <= wait_of(bucket, now) < most


def test_a_process_asks_for_the_calls_behind_the_first_one():
    account = another("ask", 60_000)
    account.ask(10, 5_000, math.inf)
    assert account.holds(250)


def test_without_the_store_the_limit_holds_in_this_process(caplog, monkeypatch):
    monkeypatch.setattr(tokens, "ASK_SECONDS", 0.0)
    limit = TokenLimit("ask", per_minute=60_000, estimate=30_000, max_wait=0)
    store = link_to(None).store()
    store.close()
    assert limit.call(lambda: WHOLE) == WHOLE
    end_threads()
    limit.call(str)
    with pytest.raises(TokenLimitedError):
        limit.call(str)
    assert caplog.text.count("is unavailable") == 1
    store.closed = False
    monkeypatch.setattr(link_to(None), "rest_until", 0.0)
    assert used(limit) == 30_042
