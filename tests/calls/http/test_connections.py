"""Places in httpcore's pool that cancelled requests would keep for ever."""

from __future__ import annotations

import asyncio

import httpx

from prefect_resilience.http import AsyncResilientTransport


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    await reader.readuntil(b"\r\n\r\n")
    writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
    await writer.drain()
    writer.close()


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
