"""The five services of the bad day, and the second provider, each on a port of its own in one process.

Plain HTTP/1.1 on asyncio, small enough to cost next to nothing beside those who call. Every request is kept
with the time of its arrival: what reached a service is what the service says.
"""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass
from multiprocessing.connection import Connection

from benchmarks.bad_day_script import HANGING, LIMIT, SERVICES, Form, Trouble, chance_of, trouble_at

SECOND = "second"
LATENCY = {**dict.fromkeys(SERVICES, 0.02), SECOND: 0.06}
"""Seconds for an answer on a good day; the second provider is the slower one."""

LONGEST_HANG = 30.0
REASONS = {200: "OK", 429: "Too Many Requests", 503: "Service Unavailable"}


@dataclass(frozen=True)
class Request:
    """`at` is in real seconds since the day began; `met` is the trouble it met, or "ok"."""

    service: str
    number: int
    at: float
    met: str


class Services:
    """What is asked of all of them, and how each answers at this moment."""

    def __init__(self, form: Form, seed: int) -> None:
        self.form = form
        self.seed = seed
        self.begin(float("inf"))

    def begin(self, begins: float) -> None:
        """The day begins at this time, in seconds since the epoch; what was before it is forgotten."""
        self.begins = begins
        self.requests: list[Request] = []
        self.asked: Counter[tuple[str, int]] = Counter()
        self.tokens = 1.0
        self.filled_at = 0.0

    async def serve(self, service: str) -> int:
        """Serve on a free port of loopback, and say which."""

        async def connected(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
            with suppress(ConnectionError, asyncio.IncompleteReadError):
                while await self._answer(service, reader, writer):
                    pass
            writer.close()

        server = await asyncio.start_server(connected, "127.0.0.1", 0)
        return server.sockets[0].getsockname()[1]

    async def _answer(self, service: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; False when the connection is over."""
        head = await reader.readuntil(b"\r\n\r\n")
        at = time.time() - self.begins
        number = int(head.split(b" ", 2)[1].strip(b"/"))
        met = self._meets(service, number, at)
        self.requests.append(Request(service, number, at, met))
        if met in {"slow", "hang"}:
            patience = 2 * self.form.timeout if met == "slow" else LONGEST_HANG
            with suppress(asyncio.TimeoutError):
                # Whoever hangs up first is no longer waited for.
                await asyncio.wait_for(reader.read(1), patience)
                return False
        if met == "cut":
            writer.write(b"HTTP/1.1 200 OK\r\nContent-Length: 1000\r\n\r\n{")
            await writer.drain()
            writer.transport.abort()
            return False
        if met == "ok":
            await asyncio.sleep(LATENCY[service])
        return await self._send(writer, {"limit": 429, "503": 503}.get(met, 200), service, number)

    def _meets(self, service: str, number: int, at: float) -> str:
        self.asked[service, number] += 1
        trouble = trouble_at(service, at, self.form)
        if trouble is None:
            return "ok"
        luck = chance_of(self.seed, service, number, self.asked[service, number])
        return self._met(trouble, luck, at)

    def _met(self, trouble: Trouble, luck: float, at: float) -> str:
        if trouble.kind == "limit":
            return "ok" if self._lets_in(at) else "limit"
        if trouble.kind == "outage":
            return "hang" if luck < HANGING else "503"
        if trouble.kind == "down":
            return "503"
        return trouble.kind if luck < trouble.share else "ok"

    def _lets_in(self, at: float) -> bool:
        """A bucket that fills at LIMIT of the usual load and holds two tokens."""
        self.tokens = min(2.0, self.tokens + (at - self.filled_at) * LIMIT * self.form.usual_rate)
        self.filled_at = at
        if self.tokens < 1:
            return False
        self.tokens -= 1
        return True

    async def _send(self, writer: asyncio.StreamWriter, status: int, service: str, number: int) -> bool:
        body = json.dumps({"by": service, "number": number, "status": status}).encode()
        wait = f"Retry-After: {self.form.retry_after}\r\n" if status == 429 else ""
        head = f"HTTP/1.1 {status} {REASONS[status]}\r\n{wait}Content-Length: {len(body)}\r\n\r\n"
        writer.write(head.encode() + body)
        await writer.drain()
        return True


def run(connection: Connection, form: Form, seed: int) -> None:
    """Serve until None comes: answers "ports" first, then begins a day for each number, and gives a "log"."""
    services = Services(form, seed)
    loop = asyncio.new_event_loop()
    threading.Thread(target=loop.run_forever, daemon=True).start()

    async def serve_all() -> dict[str, int]:
        return {service: await services.serve(service) for service in (*SERVICES, SECOND)}

    connection.send(asyncio.run_coroutine_threadsafe(serve_all(), loop).result())
    while (command := connection.recv()) is not None:
        if command == "log":
            connection.send(list(services.requests))
        else:
            loop.call_soon_threadsafe(services.begin, command)
