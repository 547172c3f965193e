"""Places in httpcore's pool: an attempt that times out keeps none, at whatever step it is cancelled."""

from __future__ import annotations

import asyncio
from contextlib import suppress

import httpx

from prefect_resilience import AttemptTimeout
from prefect_resilience.http import AsyncResilientTransport


async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    with suppress(asyncio.IncompleteReadError, ConnectionError):
        await reader.readuntil(b"\r\n\r\n")
        writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 2\r\nConnection: close\r\n\r\nok")
        await writer.drain()
        writer.close()


async def test_no_place_is_lost_when_attempts_time_out():
    server = await asyncio.start_server(answer, "127.0.0.1", 0)
    url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
    inner = httpx.AsyncHTTPTransport()
    async with server:
        for step in range(100):
            guarded = AsyncResilientTransport(
                retry=None, circuit=None, timeout=2e-5 * (step + 1), transport=inner
            )
            with suppress(AttemptTimeout):
                await httpx.AsyncClient(transport=guarded).get(url)
        assert all(one.is_idle() or one.is_closed() for one in inner._pool.connections)
