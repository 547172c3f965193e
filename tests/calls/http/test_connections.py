"""Places in httpcore's pool that cancelled requests would keep for ever."""

from __future__ import annotations

import asyncio

import httpx
import pytest

from prefect_resilience.calls.edge import bodies
from prefect_resilience.http import AsyncResilientTransport


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
    await writer.drain()
    writer.close()


async def third_answer() -> int:
    """The status of a request through a pool of one connection, after another request was cancelled in the
    moment in which the pool had given it the place."""
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    inner = httpx.AsyncHTTPTransport(limits=httpx.Limits(max_connections=1))
    ours = AsyncResilientTransport(retry=None, circuit=None, transport=inner)
    async with server, httpx.AsyncClient(transport=ours, timeout=httpx.Timeout(5.0, pool=0.2)) as client:
        first = await client.send(client.build_request("GET", url), stream=True)
        second = asyncio.create_task(client.get(url))
        await asyncio.sleep(0.05)  # it waits for the place
        await first.aread()
        await first.aclose()
        second.cancel()
        with pytest.raises(asyncio.CancelledError):
            await second
        return (await client.get(url)).status_code


async def test_the_place_of_a_cancelled_request_is_given_back():
    assert await third_answer() == 200


async def test_httpcore_still_loses_it_without_us(monkeypatch):
    """When this fails, httpcore has mended it: `bodies.free_places` can go."""
    monkeypatch.setattr(bodies, "_take_leftovers", lambda pool, ended: [])
    with pytest.raises(httpx.PoolTimeout):
        await third_answer()


async def lost_places(*, guarded: bool) -> int:
    """How many of a pool's places are lost after requests each of which was cancelled one step later."""
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    inner = httpx.AsyncHTTPTransport()
    transport = AsyncResilientTransport(retry=None, circuit=None, transport=inner) if guarded else inner
    async with server, httpx.AsyncClient(transport=transport) as client:
        for steps in range(60):
            asking = asyncio.create_task(client.get(url))
            for _ in range(steps):
                await asyncio.sleep(0)
            asking.cancel()
            await asyncio.wait([asking])
        return sum(not (one.is_idle() or one.is_closed()) for one in inner._pool.connections)


async def test_no_place_is_lost_at_whatever_step_a_request_is_cancelled():
    assert await lost_places(guarded=True) == 0
    assert await lost_places(guarded=False) > 0, "httpcore has mended it"
