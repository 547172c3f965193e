"""A loopback HTTP server whose every answer, fault included, is scripted. It counts what it executed."""

from __future__ import annotations

import asyncio
import gzip
import json
import socket
import struct
import threading
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Literal

Cut = Literal["accept", "request", "before", "after", "headers", "body"]


@dataclass(frozen=True)
class Act:
    """What the server does with one request.

    executed: whether the request takes effect there; by default for statuses below 400.
    cut: where the connection is reset. "accept": before anything is read; "request": in the middle of the
        request's body; "before": after the whole request, which is not executed; "after": after it was
        executed; "headers" and "body": in the middle of the answer's headers or body.
    delay: seconds before the answer. hold: the answer waits for this event.
    chunks: the body in pieces, `gap` seconds apart.
    """

    status: int = 200
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b"{}"
    executed: bool | None = None
    cut: Cut | None = None
    delay: float = 0.0
    hold: threading.Event | None = None
    chunks: tuple[bytes, ...] | None = None
    gap: float = 0.0
    packed: bool = False

    @property
    def takes(self) -> bool:
        return self.status < 400 if self.executed is None else self.executed


@dataclass(frozen=True)
class Seen:
    """One request as the server read it; `whole` if it came to its end."""

    method: str
    path: str
    headers: dict[str, str]
    body: bytes
    whole: bool
    executed: bool


Script = int | Act | Callable[[Seen], Act]


class Server:
    """Answers by a script, whose last line is repeated for ever. Serves in a thread of its own."""

    def __init__(self) -> None:
        self.script: list[Script] = [Act()]
        self.seen: list[Seen] = []
        self.connections = 0
        """All connections so far."""
        self._writers: set[asyncio.StreamWriter] = set()
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._thread.start()
        self._listener: asyncio.Server | None = None
        self._port_holder = bind(0)
        self.port: int = self._port_holder.getsockname()[1]
        self.host = f"127.0.0.1:{self.port}"
        self.url = f"http://{self.host}"
        self.open()

    def says(self, *script: Script) -> None:
        """From now on, answer by this script."""
        self.seen.clear()
        self.script = list(script)

    @property
    def executed(self) -> int:
        """How many requests took effect."""
        return sum(one.executed for one in self.seen)

    @property
    def paths(self) -> list[str]:
        return [one.path for one in self.seen]

    @property
    def open_connections(self) -> int:
        return len(self._writers)

    def open(self) -> None:
        """Listen. While the server does not, connections are refused."""
        self._do(self._open())

    def shut(self) -> None:
        self._do(self._shut())

    def close(self) -> None:
        self.shut()
        self._do(self._end_all())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(5)
        self._loop.close()
        self._port_holder.close()

    def _do(self, steps: object) -> None:
        asyncio.run_coroutine_threadsafe(steps, self._loop).result(5)  # type: ignore[arg-type]

    async def _open(self) -> None:
        listening = bind(self.port)
        self._listener = await asyncio.start_server(self._serve, sock=listening, backlog=2048)

    async def _shut(self) -> None:
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()

    async def _end_all(self) -> None:
        for task in asyncio.all_tasks() - {asyncio.current_task()}:
            task.cancel()
        await asyncio.sleep(0)

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        self._writers.add(writer)
        try:
            while await self._answered(reader, writer):
                pass
        except (OSError, asyncio.IncompleteReadError, asyncio.CancelledError):
            pass
        finally:
            self._writers.discard(writer)
            writer.close()

    async def _answered(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> bool:
        """Answer one request; whether the connection is kept."""
        line = self.script[min(len(self.seen), len(self.script) - 1)]
        if isinstance(line, Act) and line.cut == "accept":
            self.seen.append(Seen("", "", {}, b"", whole=False, executed=False))
            return _reset(writer)
        head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        method, path, _ = head[0].split(" ")
        headers = {name.lower(): value.strip() for name, _, value in (one.partition(":") for one in head[1:])}
        headers.pop("", None)
        line = self.script[min(len(self.seen), len(self.script) - 1)]
        seen = Seen(method, path, headers, b"", whole=True, executed=False)
        if isinstance(line, Act) and line.cut == "request":
            self.seen.append(replace(seen, body=await reader.read(10), whole=False))
            return _reset(writer)
        number = len(self.seen)
        self.seen.append(seen)  # its place in the script, before others come
        try:
            body = await _body(reader, headers)
        except asyncio.IncompleteReadError as error:
            self.seen[number] = replace(seen, body=error.partial, whole=False)
            raise
        seen = replace(seen, body=body)
        act = line if isinstance(line, Act) else Act(line) if isinstance(line, int) else line(seen)
        self.seen[number] = replace(seen, executed=act.takes and act.cut != "before")
        if act.cut in ("before", "after"):
            return _reset(writer)
        await asyncio.sleep(act.delay)
        if act.hold is not None:
            for _ in range(2_000):  # a thread for each of many that wait would be too much
                if act.hold.is_set():
                    break
                await asyncio.sleep(0.005)
        return await _write(act, writer, method)


async def _body(reader: asyncio.StreamReader, headers: dict[str, str]) -> bytes:
    if "chunked" not in headers.get("transfer-encoding", ""):
        return await reader.readexactly(int(headers.get("content-length", "0")))
    read: list[bytes] = []
    while size := int(await reader.readline(), 16):
        read.append(await reader.readexactly(size))
        await reader.readline()
    await reader.readline()
    return b"".join(read)


async def _write(act: Act, writer: asyncio.StreamWriter, method: str) -> bool:
    body = gzip.compress(act.body) if act.packed else act.body
    headers = {"Content-Type": "application/json", **act.headers}
    if act.packed:
        headers["Content-Encoding"] = "gzip"
    if act.chunks is None:
        headers["Content-Length"] = str(len(body))
    else:
        headers["Transfer-Encoding"] = "chunked"
    lines = [f"HTTP/1.1 {act.status} Said", *(f"{name}: {value}" for name, value in headers.items())]
    head = "\r\n".join(lines).encode("latin-1") + b"\r\n\r\n"
    if act.cut == "headers":
        writer.write(head[: len(head) // 2])
        await writer.drain()
        return False
    writer.write(head)
    if act.chunks is not None:
        return await _write_chunks(act, writer)
    if method != "HEAD":
        writer.write(body if act.cut is None else body[: len(body) // 2])
    await writer.drain()
    return act.cut is None


async def _write_chunks(act: Act, writer: asyncio.StreamWriter) -> bool:
    for number, chunk in enumerate(act.chunks or ()):
        if number:
            await asyncio.sleep(act.gap)
        writer.write(f"{len(chunk):x}\r\n".encode() + chunk + b"\r\n")
        await writer.drain()
    if act.cut is None:
        writer.write(b"0\r\n\r\n")
        await writer.drain()
    return act.cut is None


def _reset(writer: asyncio.StreamWriter) -> bool:
    """End the connection with a RST."""
    taken: socket.socket = writer.get_extra_info("socket")
    taken.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()
    return False


def bind(port: int) -> socket.socket:
    made = socket.socket()
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
    made.bind(("127.0.0.1", port))
    return made


def as_json(value: object) -> bytes:
    return json.dumps(value).encode()
