"""Ways of `tests.durable.effects.ways` as a flow for a rehearsal, whose process has the receiver."""

from __future__ import annotations

import inspect
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

import httpx
from prefect import flow

from prefect_resilience import Backoff, Effect, Retry, resilient_task
from prefect_resilience.testing import Reply, ScriptedService
from tests.durable.effects.ways import clients
from tests.durable.effects.ways.http_receiver import HttpReceiver
from tests.durable.effects.ways.receiver import Receiver
from tests.durable.effects.ways.shapes import function
from tests.durable.effects.ways.steps import Step, located
from tests.durable.effects.ways.world import World


class RemoteReceiver(Receiver):
    """The receiver as the flow sees it: what it took is a question to `truth`."""

    def __init__(self, url: str, truth: str) -> None:
        super().__init__()
        self.url, self.truth = url, truth

    @property
    def taken(self) -> Counter[str]:
        return Counter(httpx.get(f"{self.truth}/taken").json())

    def play(self, steps: Sequence[Step]) -> None:
        """It plays its script from the beginning of a case."""

    def tried(self) -> None:
        """Its script refuses no connection."""


@flow
async def send(client: str, shape: str, verify: bool, url: str, truth: str) -> None:
    folder = Path(tempfile.mkdtemp())
    world = World(RemoteReceiver(url, truth), ("a",), (), False, 60.0, folder)
    effect = Effect(key="message", verify=world.verify if verify else None, max_wait=5)
    retry = Retry(attempts=3, backoff=Backoff.none(), retry_on=Exception)
    sent = resilient_task(retry=retry, effect=effect)(function(shape, world, getattr(clients, client)))()
    if inspect.isawaitable(sent):
        await sent


class CountingReceiver(HttpReceiver):
    def __init__(self, took: Callable[[str], None]) -> None:
        super().__init__()
        self.took = took

    def take(self, message: str) -> None:
        self.took(f"message {message}")
        super().take(message)


def receiver_with(steps: Sequence[Step]) -> Callable[..., Iterator[dict[str, str]]]:
    """A receiver that plays the script of a way, once in each case."""

    def receiver(took: Callable[[str], None]) -> Iterator[dict[str, str]]:
        service = CountingReceiver(took)
        service.play([located(step, f"{service.url}/next", "") for step in steps])
        with ScriptedService().on("/taken", lambda: Reply(body=service.taken)) as truth:
            yield {"url": service.url, "truth": truth.url}
        service.close()

    return receiver
