"""What a guard around any call costs: the requirements are judged."""

import pytest

from benchmarks import any_call
from benchmarks.any_call import BARE, BOTH, HTTPX_RETRIES, OURS, STAMINA, TENACITY, Cost

pytestmark = pytest.mark.slow


def cost(what: str, where: str = any_call.OUTSIDE, **ratios: float) -> Cost:
    peers = {"stamina": STAMINA, "tenacity": TENACITY, "both": BOTH, "retries": HTTPX_RETRIES}
    named = {peers[name]: ratio for name, ratio in ratios.items() if name != "added"}
    return Cost(what, "sync", where, {BARE: 1.0, OURS: 2.0}, named, ratios.get("added", 1.0))


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
