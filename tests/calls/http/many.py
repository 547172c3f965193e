"""Many callers through one client, against a server on its bad day, in a process of its own."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import httpx

from prefect_resilience import Backoff, Bulkhead, CircuitBreaker, Retry
from prefect_resilience.guards.timeouts.threads import overdue_calls
from prefect_resilience.http import AsyncResilientTransport, ResilientTransport
from tests.calls.http.server import Act, Seen, Server

PLACES = 64
LARGE = b"x" * 150_000
FAULTS: list[tuple[float, Act]] = [
    (0.04, Act(503, body=b"busy")),
    (0.02, Act(503, body=LARGE)),
    (0.02, Act(429, {"retry-after-ms": "20"})),
    (0.01, Act(cut="before")),
    (0.01, Act(cut="after")),
    (0.01, Act(cut="headers")),
    (0.01, Act(body=LARGE, cut="body")),
    (0.02, Act(delay=2.0)),  # more than an attempt may take
    (0.05, Act(chunks=(b"one", b"two", b"three"), gap=0.02)),
    (0.005, Act(chunks=(b"one", b"two"), gap=2.0)),  # more than a chunk may take
    (0.10, Act(body=LARGE)),
]


@dataclass
class Numbers:
    """What a run did, and what it left behind."""

    outcomes: Counter[str] = field(default_factory=Counter)
    latest: list[float] = field(default_factory=list)
    """Seconds from each cancellation to the end of its request."""
    connections_left: int = 0
    files_before: int = 0
    files_after: int = 0
    calm: bool = False


def serve(end: Connection) -> None:
    chance = random.Random(7)
    server = Server()

    def answer(_: Seen) -> Act:
        drawn = chance.random()
        for share, act in FAULTS:
            drawn -= share
            if drawn < 0:
                return act
        return Act()

    server.says(answer)
    end.send(server.url)
    while end.recv() != "end":
        end.send(server.open_connections)
    server.close()


@contextmanager
def bad_day() -> Iterator[tuple[str, Connection]]:
    """The URL of the server, and a connection that tells how many it has when it is asked."""
    here, there = multiprocessing.Pipe()
    process = multiprocessing.get_context("spawn").Process(target=serve, args=(there,), daemon=True)
    process.start()
    try:
        yield here.recv(), here
    finally:
        here.send("end")
        process.join(10)


def options() -> dict[str, Any]:
    return {
        "retry": Retry(attempts=3, backoff=Backoff.constant(0.01)),
        "circuit": CircuitBreaker("many:{host}", failure_threshold=10_000, minimum_calls=1_000_000),
        "limits": Bulkhead(PLACES, max_wait=60, name="many"),
        "timeout": 1.5,
    }


def of_client() -> dict[str, Any]:
    return {"limits": httpx.Limits(max_connections=100), "timeout": httpx.Timeout(5.0, pool=60.0)}


def files() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def at_rest(client: Any) -> bool:
    """No call is overdue. Of a sync client, no request is queued, and each connection is idle or closed: a
    request that `asyncio` cancels may keep its place in httpcore's pool."""
    if isinstance(client, httpx.AsyncClient):
        return overdue_calls() == 0
    pool = client._transport._inner._pool
    resting = (one.is_idle() or one.is_closed() for one in pool.connections)
    return all(resting) and not pool._requests and overdue_calls() == 0


async def _until(condition: Callable[[], bool]) -> bool:
    for _ in range(3_000):
        if condition():
            return True
        await asyncio.sleep(0.01)
    return False


async def run(isasync: bool, seconds: float, many: int) -> Numbers:
    """So many callers of one client: coroutines (some are cancelled) or threads."""
    asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(max(many, PLACES)))
    with bad_day() as (url, server):
        numbers = Numbers(files_before=files())
        transport: Any = AsyncResilientTransport if isasync else ResilientTransport
        made: Any = httpx.AsyncClient if isasync else httpx.Client
        client = made(transport=transport(**options()), **of_client())
        end = time.monotonic() + seconds
        await asyncio.gather(*(_call_on(isasync, client, url, end, seed, numbers) for seed in range(many)))
        numbers.calm = await _until(lambda: at_rest(client))
        await client.aclose() if isasync else client.close()
        await _until(lambda: files() <= numbers.files_before)
        numbers.files_after = files()

        def none_left() -> bool:
            """Once the server has noticed the end of the connections."""
            server.send("numbers")
            numbers.connections_left = server.recv()
            return numbers.connections_left == 0

        await _until(none_left)
    return numbers


async def _call_on(isasync: bool, client: Any, url: str, end: float, seed: int, numbers: Numbers) -> None:
    chance = random.Random(seed)
    while time.monotonic() < end:
        asking = asyncio.ensure_future(
            _aask(client, url, chance) if isasync else asyncio.to_thread(_ask, client, url, chance)
        )
        if isasync and chance.random() < 0.2:
            await asyncio.wait([asking], timeout=chance.uniform(0, 0.5))
            began = time.monotonic()
            asking.cancel()
            await asyncio.wait([asking])
            if asking.cancelled():
                numbers.latest.append(time.monotonic() - began)
                numbers.outcomes["cancelled"] += 1
                continue
        try:
            numbers.outcomes[await asking] += 1
        except Exception as error:
            numbers.outcomes[type(error).__name__] += 1


METHODS = ["GET", "GET", "GET", "POST"]


def _ask(client: httpx.Client, url: str, chance: random.Random) -> str:
    with client.stream(chance.choice(METHODS), url) as answer:
        if chance.random() < 0.2:  # left after the first chunk
            next(answer.iter_raw(), b"")
            return "left"
        answer.read()
        return str(answer.status_code)


async def _aask(client: httpx.AsyncClient, url: str, chance: random.Random) -> str:
    async with client.stream(chance.choice(METHODS), url) as answer:
        if chance.random() < 0.2:
            async for _ in answer.aiter_raw():
                return "left"
        await answer.aread()
        return str(answer.status_code)
