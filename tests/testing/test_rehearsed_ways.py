"""Twenty ways to send, with `verify` and without: a rehearsal comes to the verdict of the table of ways.

pytest -m "" tests/testing/test_rehearsed_ways.py
"""

from __future__ import annotations

from typing import Any

import pytest

from prefect_resilience import ConfigurationError
from prefect_resilience.testing import Rehearsal
from tests.durable.effects.ways.catalogue import ways
from tests.durable.effects.ways.places import CLIENTS
from tests.durable.effects.ways.way import IN_DOUBT, Combination, Way, expected
from tests.testing.rehearsed_ways import receiver_with, send
from tests.testing.test_rehearsal import Rehearse, on_api

__all__ = ["on_api"]
pytestmark = [pytest.mark.long, pytest.mark.api, pytest.mark.timeout(600)]

CHOSEN = {
    ("httpx", "one request"): ("cut after it was taken", "429"),
    ("httpx async", "one request"): ("cut after the headers", "404"),
    ("requests", "one request"): ("cut after it was taken", "500, taken"),
    ("urllib", "one request"): ("429", "307, not followed"),
    ("requests in asyncio.to_thread", "one request"): ("cut after it was taken", "404"),
    ("httpx", "redirect"): ("303 to a page that answers 429", "303 to a page that answers 200"),
    ("httpx", "GET, then POST"): ("fine, then 429", "503 at the GET"),
    ("httpx async, a transport that retries", "retries inside"): (
        "cut after it was taken, then 429",
        "cut before it was taken, then fine",
    ),
    ("requests, urllib3 retries", "retries inside"): (
        "cut after it was taken, then 429",
        "cut before it was taken, then fine",
    ),
    ("openai", "retries inside"): ("400", "429, then fine"),
}
WAYS = [way for way in ways() if way.fault in CHOSEN.get((way.client, way.shape), ())]


def test_there_are_twenty() -> None:
    assert len(WAYS) == 20


def rehearse_way(on_api: Rehearse, way: Way, verify: bool) -> Rehearsal:
    client = CLIENTS[way.client].__name__
    parameters: dict[str, Any] = {"client": client, "shape": way.shape, "verify": verify}
    return on_api(send, receiver=receiver_with(way.steps), parameters=parameters, kills=8)


@pytest.mark.parametrize("verify", [True, False], ids=["verify", "neither"])
@pytest.mark.parametrize("way", WAYS, ids=lambda way: way.name)
def test_a_rehearsal_comes_to_the_same_verdict(way: Way, verify: bool, on_api: Rehearse) -> None:
    ends = expected(way, Combination(verify=verify, proof=False))
    if ends == {IN_DOUBT}:
        with pytest.raises(ConfigurationError, match=r"the first run.*(InDoubt|in doubt|unknown)"):
            rehearse_way(on_api, way, verify)
    else:
        result = rehearse_way(on_api, way, verify)
        result.assert_once()
        assert result.kills
        assert not (verify and result.stopped), result
