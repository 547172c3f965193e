"""What surrounds one run: its receiver, how often the function was entered, and what the run lets go on."""

from __future__ import annotations

import socket
import threading
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.durable.effects.ways.receiver import PATIENCE
from tests.durable.effects.ways.steps import Hold, Step, located


@dataclass
class World:
    """`steps` is what the receiver does at the first attempt; at every later one all is fine."""

    receiver: Any
    messages: tuple[str, ...]
    steps: Sequence[Step]
    witness: bool
    read_seconds: float
    folder: Path
    """An empty folder, for functions that write files."""
    entered: int = 0
    asked: int = 0
    """How often `verify` was asked."""
    busy: int = 0
    """How many calls are going on, also where nobody waits for them any more."""
    changed: threading.Condition = field(default_factory=threading.Condition)
    let_send: threading.Event = field(default_factory=threading.Event)

    def __post_init__(self) -> None:
        self._port_holder = socket.socket()
        self._port_holder.bind(("127.0.0.1", 0))
        self.dead_port: int = self._port_holder.getsockname()[1]

    @property
    def first(self) -> bool:
        """Whether the first call is the last one so far."""
        return self.entered == 1

    def enter(self) -> None:
        """The function begins."""
        with self.changed:
            self.entered += 1
            self.changed.notify_all()
        url = getattr(self.receiver, "url", "")
        steps = [located(step, f"{url}/next", f"http://127.0.0.1:{self.dead_port}/") for step in self.steps]
        self.receiver.play(steps if self.first else ())

    @contextmanager
    def going_on(self) -> Generator[None, None, None]:
        """A call, or the part of it that runs in a thread of its own."""
        with self.changed:
            self.busy += 1
        try:
            yield
        finally:
            with self.changed:
                self.busy -= 1
                self.changed.notify_all()

    def wait_to_send(self) -> None:
        """Something that takes long before anything is sent, at the first attempt."""
        if self.first:
            self.held.set()
            self.let_send.wait(PATIENCE)

    def verify(self, key: str) -> Any:
        """Ask the receiver what it took."""
        if any(isinstance(step, Hold) for step in self.steps):
            self.held.wait(PATIENCE)  # what was sent arrives before the question does
        with self.changed:
            self.asked += 1
            self.changed.notify_all()
        return self.receiver.knows(self.messages)

    def let_go(self) -> None:
        """What is held, wherever, goes on."""
        self.let_send.set()
        self.receiver.release.set()

    @property
    def held(self) -> threading.Event:
        """Set when a call is held, by the receiver or before it sends."""
        return self.receiver.held

    def settle(self) -> None:
        """Wait until no call goes on any more."""
        self.let_go()
        with self.changed:
            self.changed.wait_for(lambda: self.busy == 0, PATIENCE)
        self.receiver.quiet()

    def close(self) -> None:
        self.receiver.close()
        self._port_holder.close()
