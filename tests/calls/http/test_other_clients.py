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
