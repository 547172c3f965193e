"""What a guard around any call costs: the candidates make the same call, and the requirements are judged."""

import asyncio

import pytest

from benchmarks import any_call
from benchmarks.any_call import BARE, BOTH, HTTPX_RETRIES, OURS, STAMINA, TENACITY, Cost

pytestmark = pytest.mark.slow


def cost(what: str, where: str = any_call.OUTSIDE, **ratios: float) -> Cost:
    peers = {"stamina": STAMINA, "tenacity": TENACITY, "both": BOTH, "retries": HTTPX_RETRIES}
    named = {peers[name]: ratio for name, ratio in ratios.items() if name != "added"}
    return Cost(what, "sync", where, {BARE: 1.0, OURS: 2.0}, named, ratios.get("added", 1.0))


def test_all_candidates_call_the_same_function() -> None:
    for candidates in (any_call.retried(any_call.page), any_call.broken(any_call.page, "test-any-call")):
        assert {name: fn(3) for name, fn in candidates.items()} == dict.fromkeys(candidates, 3)

    async def answers() -> list[int]:
        found = [*any_call.retried(any_call.page_async).values()]
        found += any_call.broken(any_call.page_async, "test-any-call").values()
        return [await fn(3) for fn in found]

    assert set(asyncio.run(answers())) == {3}


def test_each_requirement_can_be_missed() -> None:
    bytes_of = {OURS: 2.0, STAMINA: 4.0, TENACITY: 4.0}
    good = [
        cost(any_call.FUNCTION, stamina=0.7, tenacity=0.7),
        cost(any_call.CIRCUIT, both=1.0),
        cost(any_call.IN_MEMORY, retries=1.5, added=40),
        cost(any_call.LOOPBACK, retries=1.1, added=40),
        cost(any_call.FUNCTION, any_call.IN_FLOW, stamina=9, tenacity=9),
    ]
    kept = any_call.requirements(good, bytes_of)
    assert [one.holds for one in kept] == [True] * 8
    bad = [
        cost(any_call.FUNCTION, stamina=0.71, tenacity=0.71),
        cost(any_call.CIRCUIT, both=1.01),
        cost(any_call.IN_MEMORY, retries=1, added=41),
        cost(any_call.LOOPBACK, retries=1.11, added=41),
    ]
    missed = any_call.requirements(bad, {**bytes_of, OURS: 5.0})
    assert [one.holds for one in missed] == [False] * 8


def test_a_waiting_call_takes_no_more_memory_than_those_of_others() -> None:
    sizes = {name: asyncio.run(any_call.waiting(name, 2_000)) for name in any_call.MEMORY_OF}
    assert sizes[BARE] < sizes[OURS] < min(sizes[STAMINA], sizes[TENACITY])
