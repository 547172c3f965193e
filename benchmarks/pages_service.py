"""A service of pages on its bad day: `python -m benchmarks.pages_service --pages 10000 --seconds 40`.

It prints its port and answers until killed. The day begins with the first request, and what a request meets
is drawn from its page, its number among the requests for that page, and the time of the day. While it is down
the service accepts connections, so that it can count: it closes them, or answers 503.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import subprocess
import sys
import time
from collections import Counter
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import httpx

END = b"\r\n\r\n"
ROOT = Path(__file__).parents[1]
COUNTS = "/counts"


class Part(NamedTuple):
    """A part of the day, until this share of its seconds has passed."""

    name: str
    until: float


HEALTHY, ERRORS, BUSY, CUT, SLOW, DOWN = "healthy", "503", "429", "cut", "slow", "down"
DAY = (
    Part(HEALTHY, 0.1),
    Part(ERRORS, 0.25),
    Part(BUSY, 0.4),
    Part(CUT, 0.5),
    Part(SLOW, 0.6),
    Part(DOWN, 0.8),
    Part("back", float("inf")),
)
SHARE = {ERRORS: 0.3, CUT: 0.2, SLOW: 0.1}
"""The share of the requests that meet the trouble of their part."""

LET_IN = 0.6
"""The share of the usual load that is let in while the service is busy; the others get a 429."""


class Form(NamedTuple):
    """The size of a day. Without trouble, all pages would take 0.6 of its seconds."""

    pages: int
    seconds: float
    at_once: int

    @property
    def latency(self) -> float:
        """The seconds that the service takes for a page."""
        return 0.6 * self.seconds * self.at_once / self.pages

    @property
    def timeout(self) -> float:
        """The seconds that a caller waits for a page."""
        return max(1.0, 6 * self.latency)


def body_of(page: int) -> bytes:
    return f"page {page}\n".encode() * 50


def head(status: str, size: int, *more: str) -> bytes:
    lines = (f"HTTP/1.1 {status}", f"Content-Length: {size}", *more)
    return "\r\n".join(lines).encode() + END


class Service:
    """What the service has seen, and what its next request meets."""

    def __init__(self, form: Form) -> None:
        self.form = form
        self.began: float | None = None
        self.requests: Counter[str] = Counter()
        self.asked: Counter[int] = Counter()
        self.delivered: set[int] = set()
        self._let_in, self._since = 0.0, 0.0

    def counts(self) -> dict[str, Any]:
        return {"requests": dict(self.requests), "delivered": len(self.delivered)}

    def meets(self, page: int) -> str:
        """Count a request, and return what it meets."""
        now = time.monotonic()
        if self.began is None:
            self.began = self._since = now
        day = (now - self.began) / self.form.seconds
        part = next(part.name for part in DAY if day < part.until)
        self.requests[part] += 1
        self.asked[page] += 1
        if part == BUSY:
            return HEALTHY if self._lets_in(now) else BUSY
        drawn = random.Random(f"{page} {self.asked[page]}").random()
        if part == DOWN:
            return CUT if drawn < 0.5 else DOWN
        return part if drawn < SHARE.get(part, 0) else HEALTHY

    def _lets_in(self, now: float) -> bool:
        usual = self.form.at_once / self.form.latency
        burst = self.form.at_once / 2
        self._let_in = min(self._let_in + (now - self._since) * usual * LET_IN, burst)
        self._since = now
        if self._let_in < 1:
            return False
        self._let_in -= 1
        return True


class _Connection(asyncio.Protocol):
    def __init__(self, service: Service) -> None:
        self._service = service
        self._received = b""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport)
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        self._received += data
        while END in self._received:
            request, _, self._received = self._received.partition(END)
            path = request.split(b" ", 2)[1].decode()
            if path == COUNTS:
                told = json.dumps(self._service.counts()).encode()
                self._transport.write(head("200 OK", len(told)) + told)
            else:
                self._asked(int(path.rpartition("/")[2]))

    def _asked(self, page: int) -> None:
        service = self._service
        meets, latency = service.meets(page), service.form.latency
        later = asyncio.get_running_loop().call_later
        answer = head("200 OK", len(body_of(page))) + body_of(page)
        if meets == BUSY:
            self._send(head("429 Too Many Requests", 0, "Retry-After: 1"))
        elif meets in (ERRORS, DOWN):
            self._send(head("503 Service Unavailable", 0))
        elif meets == CUT:
            # Odd pages are cut before the answer, even ones in the middle of it.
            later(latency / 2, self._close, b"" if page % 2 else answer[: len(answer) // 2])
        else:
            service.delivered.add(page) if meets == HEALTHY else None
            later(3 * service.form.timeout if meets == SLOW else latency, self._send, answer)

    def _send(self, answer: bytes) -> None:
        if not self._transport.is_closing():
            self._transport.write(answer)

    def _close(self, beginning: bytes) -> None:
        self._send(beginning)
        self._transport.close()


async def serve(form: Form) -> None:
    service, loop = Service(form), asyncio.get_running_loop()
    server = await loop.create_server(lambda: _Connection(service), "127.0.0.1", 0, backlog=1000)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextmanager
def pages_service(form: Form) -> Generator[str]:
    """The URL of a new service, in a process of its own, at the beginning of its day."""
    command = [sys.executable, "-m", "benchmarks.pages_service"]
    for name, value in form._asdict().items():
        command += [f"--{name.replace('_', '-')}", str(value)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, cwd=ROOT) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}"
        finally:
            process.kill()


def counts_of(url: str) -> dict[str, Any]:
    """What the service has counted."""
    return httpx.get(url + COUNTS).json()


def add_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--pages", type=int, default=10_000)
    parser.add_argument("--seconds", type=float, default=40.0, help="of the day, until the service is back")
    parser.add_argument("--at-once", type=int, default=50, help="pages that are fetched at once")


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_options(parser)
    options = parser.parse_args(arguments)
    asyncio.run(serve(Form(options.pages, options.seconds, options.at_once)))


if __name__ == "__main__":
    main()
