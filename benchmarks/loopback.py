"""The smallest HTTP service on loopback: `python -m benchmarks.loopback` prints its port and serves.

It answers until it is killed, keeps connections alive, and gives every request the same 1,000 bytes, so that
it adds as little as possible to what is measured at its client.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import Generator
from contextlib import contextmanager
from pathlib import Path

END = b"\r\n\r\n"
BODY = b"x" * 1000
ANSWER = b"HTTP/1.1 200 OK\r\nContent-Type: text/plain\r\nContent-Length: 1000" + END + BODY


class _Connection(asyncio.Protocol):
    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport
        self._received = b""

    def data_received(self, data: bytes) -> None:
        self._received += data
        while END in self._received:
            _, _, self._received = self._received.partition(END)
            assert isinstance(self._transport, asyncio.WriteTransport)
            self._transport.write(ANSWER)


async def serve() -> None:
    server = await asyncio.get_running_loop().create_server(_Connection, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


@contextmanager
def loopback() -> Generator[str]:
    """The URL of the service, in a process of its own."""
    command = [sys.executable, "-m", "benchmarks.loopback"]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, text=True, cwd=Path(__file__).parents[1]
    ) as process:
        try:
            assert process.stdout is not None
            yield f"http://127.0.0.1:{process.stdout.readline().strip()}/page"
        finally:
            process.kill()


if __name__ == "__main__":
    asyncio.run(serve())
