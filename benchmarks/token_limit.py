"""A fleet at a provider that counts tokens a minute: how much of its quota is used, and what it rejects.

    python -m benchmarks.token_limit [--minute 60] [--stores redis postgresql] [--processes 8] [--json]

Real processes call a simulated provider through `AsyncResilientTransport` with a `TokenLimit`, as fast as
they are let, each with CALLERS callers. The provider is a server on loopback. It keeps the exact tokens of
the last minute: those of a question when it comes, those of an answer when it ends. It answers 429 if a
question does not fit, with a `Retry-After` of a second. Questions and answers vary in length, and an answer
takes time for each token.

"used" is the share of the quota of a full minute, after LEARNS seconds in which the fleet learns how long
answers are. Operations are those that clients sent to the store, by the store's own statistics. `--minute 10`
is faster: the provider then counts windows of 10 s with a sixth of the quota, questions and answers are a
sixth as long, and the limit is the same.

Then the same processes call with a `SpendCap` of CAP USD until it lets none through. A call may cost up to
20 cents and costs 1 to 20. "spent" is what the provider has charged, by the prices of genai-prices.

The exit code is 1 if less than USED of the quota was used, REJECTED or more of the requests were answered
429, the store did more than OPERATIONS a second, more than CAP was spent, or less than LEAST_SPENT of it.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import math
import multiprocessing
import os
import random
import threading
import time
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

import httpx
from rich.console import Console
from rich.table import Table

from benchmarks.fleet_processes import statistics_of
from prefect_resilience import Retry, SpendCap, SpendCapReachedError, TokenLimit
from prefect_resilience.guards.limits.spend import price_of
from prefect_resilience.guards.limits.usage import Usage
from prefect_resilience.http import AsyncResilientTransport
from tests.stores_servers import PostgresServer, RedisServer, Server

QUOTA = 300_000
PROCESSES, CALLERS = 8, 5
LEARNS = 10.0
QUESTION, ANSWER = (50, 600), (20, 1_500)
SECONDS_PER_TOKEN = 0.001
CAP, LEAST_SPENT, MODEL, MOST_TOKENS = 5.0, 0.9, "gpt-4o", 20_000
USED, REJECTED, OPERATIONS = 0.9, 0.01, 100.0


class Provider(ThreadingHTTPServer):
    """Answers questions, and counts the tokens of the last minute, which may be a short one."""

    daemon_threads = True
    request_queue_size = 200

    def __init__(self, minute: float) -> None:
        self.minute, self.quota = minute, QUOTA * minute / 60
        self.used: deque[tuple[float, int]] = deque()
        self.answered = self.rejected = 0
        self.spent = 0.0
        self._lock = threading.Lock()
        super().__init__(("127.0.0.1", 0), Handler)
        threading.Thread(target=self.serve_forever, daemon=True).start()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1/chat/completions"

    def tokens(self) -> int:
        """The tokens of the last minute."""
        while self.used and self.used[0][0] <= time.monotonic() - self.minute:
            self.used.popleft()
        return sum(tokens for _, tokens in self.used)

    def draw(self, sizes: tuple[int, int]) -> int:
        """A number of tokens, which is smaller in a short minute."""
        return math.ceil(random.randint(*sizes) * self.minute / 60)

    def admit(self, question: int) -> bool:
        with self._lock:
            fits = self.tokens() + question <= self.quota
            self.answered += fits
            self.rejected += not fits
            if fits:
                self.used.append((time.monotonic(), question))
            return fits

    def charge(self, answer: int) -> None:
        with self._lock:
            self.spent += price_of(Usage(0, answer), MODEL) or 0.0

    def count(self, answer: int) -> None:
        with self._lock:
            self.used.append((time.monotonic(), answer))

    def share(self) -> float:
        with self._lock:
            return self.tokens() / self.quota


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    server: Provider

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        if "max_tokens" in body:
            answer = random.randint(body["max_tokens"] // 20, body["max_tokens"])
            self.server.charge(answer)
            time.sleep(answer / 50_000)
            return self._say(200, {"usage": {"completion_tokens": answer}, "model": body["model"]})
        question, answer = len(body["messages"]), self.server.draw(ANSWER)
        if not self.server.admit(question):
            return self._say(429, {"error": "too many tokens"})
        time.sleep(SECONDS_PER_TOKEN * answer)
        self.server.count(answer)
        return self._say(200, {"usage": {"prompt_tokens": question, "completion_tokens": answer}})

    def _say(self, status: int, content: dict[str, Any]) -> None:
        body = json.dumps(content).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.send_header("Retry-After", "1")
        self.end_headers()
        self.wfile.write(body)

    def handle(self) -> None:
        with suppress(ConnectionError):  # the fleet is killed at the end
            super().handle()

    def log_message(self, *_: Any) -> None:
        """Nothing is logged."""


def work(url: str, store: str, minute: float) -> None:
    """One process of the fleet, until it is ended."""
    os.environ["PREFECT_RESILIENCE_STORE_URL"] = store
    asyncio.run(_call(url, minute))


async def _call(url: str, minute: float) -> None:
    limit = TokenLimit("provider", per_minute=QUOTA)
    transport = AsyncResilientTransport(limits=limit, retry=Retry(attempts=10), circuit=None)

    async def caller() -> None:
        while True:
            question = "x" * math.ceil(random.randint(*QUESTION) * minute / 60)
            await client.post(url, json={"messages": question})

    async with httpx.AsyncClient(transport=transport, timeout=60) as client:
        await asyncio.gather(*(caller() for _ in range(CALLERS)))


def spend(url: str, store: str, name: str) -> None:
    """One process of the fleet, until no call is let through."""
    os.environ["PREFECT_RESILIENCE_STORE_URL"] = store
    asyncio.run(_spend(url, name))


async def _spend(url: str, name: str) -> None:
    cap = SpendCap(usd=CAP, per="day", name=name)
    transport = AsyncResilientTransport(limits=cap, retry=None, circuit=None)

    async def caller() -> None:
        with suppress(SpendCapReachedError):
            while True:
                await client.post(url, json={"model": MODEL, "max_tokens": MOST_TOKENS})

    async with httpx.AsyncClient(transport=transport, timeout=60) as client:
        await asyncio.gather(*(caller() for _ in range(CALLERS)))


def measure_cap(server: Server, processes: int) -> float:
    """What one fleet has spent when its cap lets no call through."""
    provider = Provider(60.0)
    name, context = f"cap-{time.time()}", multiprocessing.get_context("spawn")
    fleet = [
        context.Process(target=spend, args=(provider.url, server.url(), name), daemon=True)
        for _ in range(processes)
    ]
    for member in fleet:
        member.start()
    for member in fleet:
        member.join()
    provider.shutdown()
    provider.server_close()
    return provider.spent


def measure(server: Server, minute: float, processes: int) -> dict[str, Any]:
    """One fleet on one store."""
    provider = Provider(minute)
    context = multiprocessing.get_context("spawn")
    fleet = [
        context.Process(target=work, args=(provider.url, server.url(), minute), daemon=True)
        for _ in range(processes)
    ]
    try:
        for member in fleet:
            member.start()
        while not provider.answered:
            time.sleep(0.05)
        time.sleep(min(LEARNS, minute))
        before, begun = statistics_of(server), time.monotonic()
        time.sleep(minute)
        after, took = statistics_of(server), time.monotonic() - begun
        share = provider.share()
    finally:
        for member in fleet:
            member.kill()
            member.join()
        provider.shutdown()
        provider.server_close()
    return {
        "store": type(server).__name__.removesuffix("Server"),
        "processes": processes,
        "used": share,
        "rejected": provider.rejected / (provider.answered + provider.rejected),
        "requests": provider.answered + provider.rejected,
        "operations_per_second": (after["sent"] - before["sent"]) / took,
    }


def holds(row: dict[str, Any]) -> bool:
    is_used = row["used"] >= USED and row["rejected"] < REJECTED
    is_spent = CAP * LEAST_SPENT <= row["spent"] <= CAP
    return is_used and is_spent and row["operations_per_second"] <= OPERATIONS


def measure_all(stores: Sequence[str], minute: float, processes: int) -> list[dict[str, Any]]:
    rows: list[dict[str, Any]] = []
    for kind in stores:
        server = RedisServer() if kind == "redis" else PostgresServer()
        try:
            server.start()
            rows.append({**measure(server, minute, processes), "spent": measure_cap(server, processes)})
        finally:
            server.remove()
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--minute", type=float, default=60.0)
    parser.add_argument("--stores", nargs="+", default=["redis", "postgresql"])
    parser.add_argument("--processes", type=int, default=PROCESSES)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args(arguments)
    rows = measure_all(options.stores, options.minute, options.processes)
    if options.json:
        print(json.dumps(rows, indent=2))
    else:
        table = Table(title=f"TokenLimit: {QUOTA:,} tokens a minute, in a minute of {options.minute:g} s")
        for title in rows[0]:
            table.add_column(title.replace("_", " "), justify="right")
        for row in rows:
            share, rejected = f"{row['used']:.1%}", f"{row['rejected']:.2%}"
            operations, spent = f"{row['operations_per_second']:.1f}", f"{row['spent']:.2f} USD"
            cells = (row["store"], str(row["processes"]), share, rejected, str(row["requests"]))
            table.add_row(*cells, operations, spent)
        Console(width=100).print(table)
    return 0 if all(holds(row) for row in rows) else 1


if __name__ == "__main__":
    raise SystemExit(main())
