"""Other clients that get the transport or the adapter: requests, Elasticsearch's, and Prefect's own."""

from __future__ import annotations

import asyncio
from typing import Any

import elasticsearch
import httpx
import pytest
from elastic_transport import HttpxAsyncHttpNode, NodeConfig, RequestsHttpNode
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_MAX_RETRIES, temporary_settings

from prefect_resilience import ErrorCategory as C
from prefect_resilience import classify
from prefect_resilience.http import AsyncResilientTransport, ResilientAdapter, ResilientTransport
from tests.calls.http.server import Act, Seen, as_json
from tests.calls.http.webs import AT_ONCE

OURS: Any = {"retry": AT_ONCE, "circuit": None}
FOUND = Act(headers={"X-Elastic-Product": "Elasticsearch"}, body=as_json({"_id": "1", "found": True}))


# -- Elasticsearch: a node class of one's own, since its nodes make their clients themselves


class Node(RequestsHttpNode):
    def __init__(self, config: NodeConfig) -> None:
        super().__init__(config)
        self.session.mount(self.base_url, ResilientAdapter(**OURS))


class NodeWithCircuit(RequestsHttpNode):
    def __init__(self, config: NodeConfig) -> None:
        super().__init__(config)
        self.session.mount(self.base_url, ResilientAdapter(retry=AT_ONCE))


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


def test_a_search_is_a_post(server) -> None:
    """So it is repeated only with `allowed_methods=`; what stores a document without an id is one, too."""
    server.says(503, FOUND)
    with (
        elasticsearch.Elasticsearch(server.url, node_class=Node, max_retries=0) as client,
        pytest.raises(elasticsearch.ApiError) as caught,
    ):
        client.search(index="papers", query={"match_all": {}})
    assert caught.value.status_code == 503
    assert [one.method for one in server.seen] == ["POST"]


def test_elasticsearch_that_is_down_is_not_asked_any_more(server) -> None:
    server.says(503)
    with elasticsearch.Elasticsearch(server.url, node_class=NodeWithCircuit, max_retries=0) as client:
        with pytest.raises(elasticsearch.ApiError):
            client.get(index="papers", id="1")
        for _ in range(3):
            with pytest.raises(elasticsearch.ConnectionError) as caught:
                client.get(index="papers", id="1")
    assert len(server.seen) == 5
    # Its sync nodes raise `from None`: the caller cannot tell that a circuit was open
    assert classify(caught.value).category is C.NETWORK


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
