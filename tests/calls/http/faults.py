"""The ways in which the POST of an effect fails, each on a real socket."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import httpx

from tests.calls.http.server import Act, Server


@dataclass
class World:
    """Where the POST goes. `urls` are those of the attempts, the last one for ever."""

    server: Server
    other: Server
    urls: list[str]
    options: dict[str, Any] = field(default_factory=dict)
    """Of the POST."""
    transport: dict[str, Any] = field(default_factory=dict)
    client: dict[str, Any] = field(default_factory=dict)
    asked: int = 0
    after: Callable[[], None] = lambda: None
    """Called after each failed attempt of the function."""

    @property
    def url(self) -> str:
        self.asked += 1
        return self.urls[min(self.asked, len(self.urls)) - 1]

    @property
    def executed(self) -> int:
        return self.server.executed + self.other.executed


# -- nothing left, or it was refused and may pass


def refused(world: World) -> None:
    world.server.shut()
    world.after = world.server.open


def unknown_name(world: World) -> None:
    world.urls.insert(0, "http://nosuch.invalid/orders")


def handshake_cut(world: World) -> None:
    world.urls.insert(0, f"https://{world.other.host}/orders")
    world.other.says(Act(cut="accept"))


def handshake_hangs(world: World) -> None:
    """The server takes the connection and says nothing: httpx gives up before it has sent the request."""
    world.urls.insert(0, f"https://{world.other.host}/orders")
    world.client = {"timeout": httpx.Timeout(5.0, connect=0.2)}


def refused_with(status: int) -> Callable[[World], None]:
    def fault(world: World) -> None:
        world.server.says(Act(status, {"retry-after-ms": "20"}), Act(status), 200)

    return fault


def redirected_after_a_refusal(world: World) -> None:
    world.server.says(429, 200)
    world.client = {"follow_redirects": True}


PASSING = {
    "refused": refused,
    "DNS": unknown_name,
    "TLS cut": handshake_cut,
    "TLS hangs": handshake_hangs,
    "429": refused_with(429),
    "425": refused_with(425),
    "429, redirects followed": redirected_after_a_refusal,
}


# -- it left, and nobody knows what became of it


def cut(where: Any, status: int = 200) -> Callable[[World], None]:
    def fault(world: World) -> None:
        world.server.says(Act(status, cut=where, executed=where in ("after", "headers", "body")), 200)

    return fault


def answered(status: int, executed: bool) -> Callable[[World], None]:
    def fault(world: World) -> None:
        world.server.says(Act(status, executed=executed), 200)

    return fault


def slow_for_the_client(world: World) -> None:
    world.client = {"timeout": 0.5}
    world.server.says(Act(delay=2), 200)


def slow_for_the_transport(world: World) -> None:
    world.transport = {"timeout": 0.5}
    world.server.says(Act(delay=2), 200)


def redirect_then(fault: Act) -> Callable[[World], None]:
    def fail(world: World) -> None:
        world.client = {"follow_redirects": True}
        world.server.says(Act(307, {"Location": f"{world.other.url}/there"}, executed=False), 200)
        world.other.says(fault)

    return fail


def see_other_then_failure(world: World) -> None:
    """The order was taken; what failed is to show it."""
    world.client = {"follow_redirects": True}
    world.server.says(Act(303, {"Location": f"{world.other.url}/there"}, executed=True), 200)
    world.other.says(404)


def half_written(world: World) -> None:
    def pieces() -> Iterator[bytes]:
        yield b"x" * 100_000
        raise OSError("the file is gone")

    world.options = {"content": pieces}


def no_json(world: World) -> None:
    world.server.says(Act(200, body=b"<html>", executed=True))


UNKNOWN: dict[str, tuple[Callable[[World], None], Any]] = {
    "reset within the request": (cut("request"), "sent"),
    "reset before it was executed": (cut("before"), "sent"),
    "reset after it was executed": (cut("after"), "verified"),
    "cut headers": (cut("headers"), "verified"),
    "cut body": (cut("body"), "verified"),
    "408, executed": (answered(408, True), "verified"),
    "409": (answered(409, False), httpx.HTTPStatusError),
    "500, executed": (answered(500, True), "verified"),
    "503, executed": (answered(503, True), "verified"),
    "slow for the client": (slow_for_the_client, "verified"),
    "slow for the transport": (slow_for_the_transport, "verified"),
    "307, then 429": (redirect_then(Act(429)), "sent"),
    "307, then cut": (redirect_then(Act(cut="after")), "verified"),
    "303, then 404": (see_other_then_failure, "verified"),
    "half a body": (half_written, OSError),
    "no JSON": (no_json, "verified"),
}
"""The faults, and what becomes of the effect if `verify` knows what the server executed: it is told so, the
request is sent again, or the error is raised, since nothing was executed and the error is no passing one."""
