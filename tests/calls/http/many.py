"""Many callers through one client, against a server on its bad day, in a process of its own."""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import os
import random
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

import httpx

from prefect_resilience import AttemptTimeout, Backoff, Bulkhead, CircuitBreaker, Retry, Timeout
from prefect_resilience.guards.timeouts.threads import overdue_calls
from prefect_resilience.http import AsyncResilientTransport, ResilientTransport
from tests.calls.http.server import Act, Seen, Server
from tests.calls.http.webs import until

PLACES = 64
LARGE = b"x" * 150_000
TURNS = 5
"""How often the places are counted, if a busy machine cannot make so many requests in an attempt's time."""
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
    requests: int = 0
    """As the server counted them."""
    connections_left: int = 0
    files_before: int = 0
    files_after: int = 0
    places: int = 0
    """Requests that were in flight together afterwards."""
    calm: bool = False

    def told(self) -> str:
        latest = [f"{seconds * 1000:.0f} ms" for seconds in sorted(self.latest)]
        middle, last = (latest[len(latest) // 2], latest[-1]) if latest else ("-", "-")
        return (
            f"{self.requests:,} requests, {dict(self.outcomes)}; "
            f"cancelled {len(latest):,}, gone after {middle} (median), {last} (most); "
            f"files {self.files_before} -> {self.files_after}; places {self.places}"
        )


def serve(end: Connection) -> None:
    chance = random.Random(7)
    server, held, waiting = Server(), defaultdict[str, threading.Event](threading.Event), Counter[str]()

    def answer(seen: Seen) -> Act:
        if seen.path.startswith("/held/"):  # answered when PLACES of them are here
            waiting[seen.path] += 1
            if waiting[seen.path] == PLACES:
                held[seen.path].set()
            return Act(hold=held[seen.path])
        drawn = chance.random()
        for share, act in FAULTS:
            drawn -= share
            if drawn < 0:
                return act
        return Act()

    server.says(answer)
    end.send(server.url)
    while end.recv() != "end":
        end.send((len(server.seen), server.open_connections))
    server.close()


@contextmanager
def bad_day() -> Iterator[tuple[str, Connection]]:
    """The URL of the server, and a connection that tells its numbers when it is asked."""
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
        "timeout": Timeout(1.5, idle=0.5),
    }


def of_client() -> dict[str, Any]:
    return {"limits": httpx.Limits(max_connections=100), "timeout": httpx.Timeout(5.0, pool=60.0)}


def files() -> int:
    gc.collect()
    return len(os.listdir("/proc/self/fd"))


def at_rest(client: Any) -> bool:
    pool = client._transport._inner._pool
    idle = all(one.is_idle() or one.is_closed() for one in pool.connections)
    return idle and not pool._requests and overdue_calls() == 0


def _connections_left(server: Connection) -> int:
    """The connections that the server still has, once it has noticed the end of the others."""
    left = 0

    def none() -> bool:
        nonlocal left
        server.send("numbers")
        _, left = server.recv()
        return left == 0

    until(none)
    return left


# -- threads


def threads(seconds: float, many: int) -> Numbers:
    with bad_day() as (url, server):
        numbers = Numbers(files_before=files())
        client = httpx.Client(transport=ResilientTransport(**options()), **of_client())
        end = time.monotonic() + seconds
        callers = [
            threading.Thread(target=_call_on, args=(client, url, end, seed, numbers)) for seed in range(many)
        ]
        for one in callers:
            one.start()
        for one in callers:
            one.join()
        numbers.calm = until(lambda: at_rest(client))
        _count_places(client, url, numbers)
        server.send("numbers")
        numbers.requests, _ = server.recv()
        client.close()
        until(lambda: files() <= numbers.files_before)
        numbers.files_after = files()
        numbers.connections_left = _connections_left(server)
    return numbers


def _call_on(client: httpx.Client, url: str, end: float, seed: int, numbers: Numbers) -> None:
    chance = random.Random(seed)
    while time.monotonic() < end:
        method = chance.choice(["GET", "GET", "GET", "POST"])
        try:
            with client.stream(method, f"{url}/{seed}") as answer:
                if chance.random() < 0.2:  # left after the first chunk
                    next(answer.iter_raw(), b"")
                    numbers.outcomes["left"] += 1
                else:
                    answer.read()
                    numbers.outcomes[str(answer.status_code)] += 1
        except Exception as error:
            numbers.outcomes[type(error).__name__] += 1


def _count_places(client: httpx.Client, url: str, numbers: Numbers) -> None:
    def held(turn: int) -> bool:
        try:
            return client.post(f"{url}/held/{turn}").status_code == 200
        except AttemptTimeout:
            return False

    for turn in range(TURNS):
        with ThreadPoolExecutor(PLACES) as callers:
            numbers.places = sum(callers.map(held, [turn] * PLACES))
        if numbers.places == PLACES:
            return


# -- coroutines


async def coroutines(seconds: float, many: int) -> Numbers:
    with bad_day() as (url, server):
        numbers = Numbers(files_before=files())
        client = httpx.AsyncClient(transport=AsyncResilientTransport(**options()), **of_client())
        end = time.monotonic() + seconds
        await asyncio.gather(*(_acall_on(client, url, end, seed, numbers) for seed in range(many)))
        numbers.calm = await _until(lambda: at_rest(client))
        await _acount_places(client, url, numbers)
        server.send("numbers")
        numbers.requests, _ = server.recv()
        await client.aclose()
        await _until(lambda: files() <= numbers.files_before)
        numbers.files_after = files()
        numbers.connections_left = _connections_left(server)
    return numbers


async def _acall_on(client: httpx.AsyncClient, url: str, end: float, seed: int, numbers: Numbers) -> None:
    chance = random.Random(seed)
    while time.monotonic() < end:
        asking = asyncio.create_task(_ask(client, url, chance))
        if chance.random() < 0.2:
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


async def _ask(client: httpx.AsyncClient, url: str, chance: random.Random) -> str:
    async with client.stream(chance.choice(["GET", "GET", "GET", "POST"]), url) as answer:
        if chance.random() < 0.2:
            async for _ in answer.aiter_raw():
                return "left"
        await answer.aread()
        return str(answer.status_code)


async def _acount_places(client: httpx.AsyncClient, url: str, numbers: Numbers) -> None:
    for turn in range(TURNS):
        held = (client.post(f"{url}/held/{turn}") for _ in range(PLACES))
        answers = await asyncio.gather(*held, return_exceptions=True)
        numbers.places = sum(isinstance(one, httpx.Response) for one in answers)
        if numbers.places == PLACES:
            return


async def _until(condition: Any) -> bool:
    for _ in range(3_000):
        if condition():
            return True
        await asyncio.sleep(0.01)
    return False
