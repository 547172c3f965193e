"""`TokenLimit`: what calls reserve, what they used, and the bucket of the fleet."""

from __future__ import annotations

import asyncio
import math
import threading
from contextlib import suppress
from types import SimpleNamespace as Object
from uuid import uuid4

import pytest
from anthropic.types import Message, MessageDeltaUsage
from hypothesis import given
from hypothesis import strategies as st
from openai.types import CompletionUsage

from prefect_resilience import TokenLimit, TokenLimitedError, classify, resilient
from prefect_resilience.errors.exceptions import AttemptTimeout, ConfigurationError
from prefect_resilience.guards.circuits.registry import forget_circuits, link_to
from prefect_resilience.guards.limits import line, tokens
from prefect_resilience.guards.limits.tokens import (
    BURST_SECONDS,
    Account,
    grant,
    new_bucket,
    pace_of,
    read_buckets,
    wait_of,
)
from prefect_resilience.guards.limits.usage import Usage, read_usage


@pytest.fixture(autouse=True)
def own_store(monkeypatch):
    forget_circuits()
    monkeypatch.setenv("PREFECT_RESILIENCE_STORE_URL", f"memory://{uuid4().hex}")
    tokens._accounts.clear()
    yield
    assert line._lines.by_key == {}


def limit_of(name="ask", **options) -> TokenLimit:
    """Its first calls reserve 100 tokens each."""
    return TokenLimit(name, per_minute=10_000, **options)


def used(name="ask") -> int:
    """The tokens that calls used, as the store has them."""
    tokens.account_of(name, 10_000)._exchange(0.0, math.inf)
    return next(bucket["used"] for bucket, _ in read_buckets() if bucket["name"] == name)


# -- the reader

ANTHROPIC = {"input_tokens": 10, "output_tokens": 1, "cache_read_input_tokens": 30}
FORMS = {
    "openai": (
        Object(usage=CompletionUsage(prompt_tokens=9, completion_tokens=12, total_tokens=21)),
        Usage(9, 12),
    ),
    "openai cached": (
        {"usage": {"prompt_tokens": 9, "prompt_tokens_details": {"cached_tokens": 4}}},
        Usage(9, 0, 4),
    ),
    "openai responses, last event": ({"response": {"usage": {"input_tokens": 9}}}, Usage(9)),
    "openai embeddings": ({"usage": {"total_tokens": 8}}, Usage(8)),
    "anthropic": ({"usage": {**ANTHROPIC, "cache_creation_input_tokens": 5}}, Usage(45, 1, 30, 5)),
    "anthropic object": (
        Message.model_construct(usage=MessageDeltaUsage.model_construct(**ANTHROPIC)),
        Usage(40, 1, 30),
    ),
    "anthropic, first event": ({"message": {"usage": ANTHROPIC}}, Usage(40, 1, 30)),
    "gemini": (
        {
            "usageMetadata": {
                **{"promptTokenCount": 9, "candidatesTokenCount": 2, "thoughtsTokenCount": 5},
                **{"toolUsePromptTokenCount": 1, "cachedContentTokenCount": 3},
            }
        },
        Usage(10, 7, 3),
    ),
    "gemini object": (
        Object(usage_metadata=Object(prompt_token_count=9, candidates_token_count=2)),
        Usage(9, 2),
    ),
    "gemini, a list of chunks": (
        [{"usageMetadata": {"promptTokenCount": 9}}, {"usageMetadata": {"candidatesTokenCount": 3}}],
        Usage(9, 3),
    ),
    "a null": ({"usage": None}, None),
    "not counts": ({"usage": {"prompt_tokens": "9", "completion_tokens": True}}, None),
}


@pytest.mark.parametrize("form", FORMS)
def test_one_reader_for_the_forms_of_all_providers(form):
    answer, usage = FORMS[form]
    assert read_usage(answer) == usage


def test_an_answer_that_cannot_be_read_has_no_usage():
    class Hostile:
        @property
        def usage(self):
            raise RuntimeError

    assert read_usage(Hostile()) is None


# -- a call is settled

WHOLE = {"usage": {"prompt_tokens": 10, "completion_tokens": 32}}
ANSWERS = {
    "usage": (WHOLE, {}, 42),
    "more than was reserved": ({"usage": {"prompt_tokens": 900}}, {}, 900),
    "no usage": ("a text", {}, 100),
    "a function": ("a text", {"usage": len}, 6),
    "a function with a form": (WHOLE, {"usage": lambda answer: answer["usage"]}, 42),
    "a function that fails": (WHOLE, {"usage": lambda answer: answer.cost}, 100),
    "rejected": (Object(status_code=404), {}, 0),
}


@pytest.mark.parametrize("form", ANSWERS)
def test_an_answer_is_settled(form):
    answer, options, counted = ANSWERS[form]
    assert resilient(limits=limit_of(**options))(lambda: answer)() is answer
    assert used() == counted


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
    "a resilient coroutine": lambda limit: asyncio.run(resilient(limits=limit)(whole)()),
    "a resilient generator": lambda limit: list(resilient(limits=limit)(generator)("a", WHOLE)),
    "an async stream": lambda limit: asyncio.run(drain(resilient(limits=limit)(agenerator)("a", WHOLE))),
}


@pytest.mark.parametrize("way", WAYS)
def test_every_way_to_call_is_settled(way):
    WAYS[way](limit_of())
    assert used() == 42


def test_a_block_counts_as_what_it_reserved():
    with limit_of():
        pass
    assert used() == 100


def close_early(limit):
    chunks = resilient(limits=limit)(generator)("a", {"usage": {"prompt_tokens": 7}}, "b")
    assert [next(chunks), next(chunks)]
    chunks.close()


def time_out(limit):
    with pytest.raises(AttemptTimeout):
        resilient(limits=limit, timeout=0.05, retry=None)(asyncio.run)(asyncio.sleep(0.2))


CUT = {
    "failed": (lambda limit: resilient(limits=limit)(int)("x"), 0),
    "cancelled": (lambda limit: asyncio.run(limit.acall(whole, asyncio.CancelledError())), 0),
    "timed out": (time_out, 100),
    "a stream closed early": (close_early, 100),
    "a stream that broke after much": (
        lambda limit: list(
            resilient(limits=limit)(generator)({"usage": {"output_tokens": 300}}, error=OSError())
        ),
        300,
    ),
}


@pytest.mark.parametrize("way", CUT)
def test_a_failed_call_has_used_nothing_and_a_cut_answer_what_it_reserved(way):
    call, counted = CUT[way]
    with suppress(ValueError, OSError, asyncio.CancelledError):
        call(limit_of())
    assert used() == counted


# -- what is reserved


def test_a_call_reserves_what_such_calls_usually_use():
    limit = TokenLimit("ask", per_minute=500_000)
    account = tokens.account_of("ask", 500_000)
    assert account.usual() == 5_000
    for size in range(1, 101):
        limit.call(lambda size=size: {"usage": {"prompt_tokens": size}})
    account._exchange(0.0, math.inf)
    assert account.usual() == 95
    other = Account("ask", 500_000)
    assert other.usual() == 5_000
    other.ask(1, 0, math.inf)
    assert other.usual() == 95


def test_the_options_are_the_same_in_json():
    limit = TokenLimit.model_validate_json('{"name": "ask:{model}", "perMinute": 9, "maxWait": 3}')
    assert limit == TokenLimit("ask:{model}", per_minute=9, max_wait=3)
    assert limit_of(usage=len).model_dump(mode="json")["name"] == "ask"
    with pytest.raises(ConfigurationError, match="write at least 1"):
        TokenLimit("ask", per_minute=0)


# -- the wait


@pytest.fixture
def large_calls(monkeypatch):
    """Each reserves the tokens of ten seconds."""
    monkeypatch.setattr(tokens, "FIRST_PART", 0.16)


def test_an_error_says_when_there_is_room(large_calls):
    limit = limit_of(max_wait=0)
    limit.call(int)
    with pytest.raises(TokenLimitedError, match="room for the 1600 tokens of this call in ") as caught:
        limit.call(int)
    assert 7 < caught.value.retry_after < 10
    info = classify(caught.value)
    assert (info.category, info.retry_after) == ("rate_limit", caught.value.retry_after)


def test_callers_wait_in_order_and_are_served_from_what_others_give_back(large_calls):
    limit = limit_of()
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


def test_a_caller_behind_the_first_one_waits_no_longer_than_its_max_wait(large_calls):
    async def both():
        first = [asyncio.create_task(limit_of().acall(asyncio.sleep, 0)) for _ in range(2)]
        await asyncio.sleep(0.1)
        with pytest.raises(TokenLimitedError):
            await limit_of(max_wait=0.05).acall(whole)
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
    dead, living = Account("ask", 60_000), Account("ask", 60_000)
    assert dead.ask(2_400, 0, math.inf) == 0
    wait = living.ask(960, 0, math.inf)
    assert 0.8 < wait < 3
    now = tokens.monotonic()
    monkeypatch.setattr(tokens, "monotonic", lambda: now + wait + tokens.LEASE_SECONDS + 1)
    assert dead.take(1)
    assert not dead.take(1_000_000)
    monkeypatch.setattr(tokens, "monotonic", lambda: now + wait + 3 * tokens.LEASE_SECONDS)
    assert not dead.take(1)


def test_much_that_was_not_used_goes_back_to_the_fleet(large_calls, monkeypatch):
    monkeypatch.setattr(tokens, "ASK_SECONDS", 0.0)
    limit_of().call(lambda: {"usage": {"prompt_tokens": 1}})
    for thread in threading.enumerate():
        if thread.name == "prefect-resilience-tokens":
            thread.join()
    assert read_buckets()[0][1] < 1


def test_without_the_store_the_limit_holds_in_this_process(large_calls, caplog, monkeypatch):
    store = link_to(None).store()
    store.close()
    assert limit_of(max_wait=0).call(lambda: None) is None
    with pytest.raises(TokenLimitedError):
        limit_of(max_wait=0).call(int)
    assert caplog.text.count("is unavailable") == 1
    store.closed = False
    monkeypatch.setattr(link_to(None), "rest_until", 0.0)
    assert used() == 1_600
