"""Clients besides httpx with the transport or the adapter: requests, httpx2, Elasticsearch's, Prefect's."""

from __future__ import annotations

import asyncio
import copy
import pickle
from collections.abc import Callable, Iterator
from typing import Any

import cloudpickle
import elasticsearch
import httpx
import httpx2
import pytest
import requests
from elastic_transport import HttpxAsyncHttpNode, NodeConfig, RequestsHttpNode
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings

from prefect_resilience import Bulkhead, CircuitBreaker, Effect, InDoubt, batch, resilient
from prefect_resilience.errors.exceptions import CircuitOpenError
from prefect_resilience.http import AsyncResilientTransport, ResilientAdapter, ResilientTransport
from tests.calls.http.server import Act, Seen, as_json
from tests.calls.http.webs import AT_ONCE

OURS: Any = {"retry": AT_ONCE, "circuit": None}


def test_what_left_is_seen(server) -> None:
    with httpx2.Client(transport=ResilientTransport(**OURS)) as client:

        @resilient(effect=Effect(key="order:{number}"), retry=AT_ONCE)
        def order(number: int) -> int:
            return client.post(server.url, json={"number": number}).raise_for_status().status_code

        with batch("orders-by-httpx2"):
            server.says(429, 200)
            assert order(1) == 200
            assert {one.headers["idempotency-key"] for one in server.seen} == {"order:1"}
            server.says(Act(cut="after"), 200)
            with pytest.raises((InDoubt, httpx2.HTTPError)):
                order(2)
            assert server.executed == 1


def test_one_transport_does_not_mix_two_libraries(server) -> None:
    """The inner transport is that of the first client; a client of the other library needs one of its own."""
    for library in (httpx, httpx2):
        ours = ResilientTransport(**OURS)
        with library.Client(transport=ours) as client:
            server.says(503, 200)
            assert isinstance(client.get(server.url), library.Response)
            assert isinstance(ours._inner, library.HTTPTransport)
    ResilientTransport(**OURS).close()  # of a client that made no request


FOUND = Act(headers={"X-Elastic-Product": "Elasticsearch"}, body=as_json({"_id": "1", "found": True}))


# -- Elasticsearch: a node class of one's own, since its nodes make their clients themselves


class Node(RequestsHttpNode):
    def __init__(self, config: NodeConfig) -> None:
        super().__init__(config)
        self.session.mount(self.base_url, ResilientAdapter(**OURS))


class AsyncNode(HttpxAsyncHttpNode):
    def __init__(self, config: NodeConfig) -> None:
        super().__init__(config)
        self.client = httpx.AsyncClient(
            base_url=self.base_url, transport=AsyncResilientTransport(**OURS), timeout=config.request_timeout
        )


@pytest.mark.parametrize("fault", [503, 429, 502, 500, Act(cut="before")])
def test_elasticsearch(server, way, fault) -> None:
    async def asked() -> Any:
        async with elasticsearch.AsyncElasticsearch(
            server.url, node_class=AsyncNode, max_retries=0
        ) as client:
            return await client.get(index="papers", id="1")

    server.says(fault, fault, FOUND)
    if way == "async":
        assert asyncio.run(asked())["found"]
    else:
        with elasticsearch.Elasticsearch(server.url, node_class=Node, max_retries=0) as client:
            assert client.get(index="papers", id="1")["found"]
    assert len(server.seen) == 3


# -- Prefect's own client


def prefect_api(seen: Seen) -> Act:
    if seen.path.endswith("/health"):
        return Act(body=b"true")
    return Act(404)


@pytest.mark.parametrize("fault", [503, 500, 504, Act(cut="before")])
def test_prefects_client_in_one_line(server, way, fault) -> None:
    """Its own retries are a setting; of a 500 and a 504 it makes none."""

    async def healthy() -> None:
        async with get_client(httpx_settings={"transport": AsyncResilientTransport(**OURS)}) as client:
            server.says(fault, fault, prefect_api)
            (await client.request("GET", "/health")).raise_for_status()

    with temporary_settings({PREFECT_API_URL: f"{server.url}/api", PREFECT_CLIENT_MAX_RETRIES: 0}):
        server.says(prefect_api)
        if way == "async":
            asyncio.run(healthy())
        else:
            ours = ResilientTransport(**OURS)
            with get_client(httpx_settings={"transport": ours}, sync_client=True) as client:
                server.says(fault, fault, prefect_api)
                client.request("GET", "/health").raise_for_status()
    assert server.paths == ["/api/health"] * 3


@pytest.fixture
def session() -> Iterator[Callable[..., requests.Session]]:
    made: list[requests.Session] = []

    def make(**options: Any) -> requests.Session:
        made.append(requests.Session())
        made[-1].mount("http://", ResilientAdapter(**{"retry": AT_ONCE, "circuit": None, **options}))
        return made[-1]

    yield make
    for one in made:
        one.close()


def at_home(request: Any) -> requests.Response:
    answer = requests.Response()
    answer.status_code = 203
    answer.url = request.url
    return answer


COPIES: list[Callable[[Any], Any]] = [
    lambda one: pickle.loads(pickle.dumps(one)),
    lambda one: pickle.loads(cloudpickle.dumps(one)),
    copy.copy,
    copy.deepcopy,
]


@pytest.mark.parametrize("again", COPIES, ids=["pickle", "cloudpickle", "copy", "deepcopy"])
@pytest.mark.parametrize(
    ("options", "answers", "status"),
    [
        ({}, [503, 503, 200], 200),
        ({"retry": None}, [503, 200], 503),
        ({"allowed_methods": ["get"]}, [503, 200], 503),
        ({"fallback": at_home, "retry": None}, [429], 203),
        ({"timeout": 30, "deadline": 60, "limits": Bulkhead(3)}, [503, 200], 200),
    ],
)
def test_a_copied_session_has_the_same_guards(session, server, again, options, answers, status):
    server.says(*answers)
    with again(session(**options)) as copied:
        adapter = copied.get_adapter("http://")
        assert adapter._pool_maxsize == ResilientAdapter()._pool_maxsize
        assert copied.put(server.url, data=b"x").status_code == status


def test_a_copied_session_shares_the_circuit(session, server):
    own = session(circuit=CircuitBreaker("copied-{host}", failure_threshold=2), retry=None)
    copied = pickle.loads(pickle.dumps(own))
    server.says(503, 503)
    assert [one.get(server.url).status_code for one in (own, copied)] == [503, 503]
    for one in (own, copied):
        with pytest.raises(CircuitOpenError):
            one.get(server.url)
