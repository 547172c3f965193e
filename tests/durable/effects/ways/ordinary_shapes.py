"""Ordinary functions around a request: they change their argument, write a file, return a state."""

from __future__ import annotations

import functools
import os
import subprocess
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from prefect.states import Cancelled, Completed, Crashed, Failed
from pydantic import BaseModel

from prefect_resilience.base.drive import Invoke, Steps
from tests.durable.effects.ways.clients import Client
from tests.durable.effects.ways.world import World

BESIDE = "beside"
"""What leaves besides the request, as the receiver counts it."""


class Order(BaseModel):
    id: int = 1
    lines: list[int] = [1]


@dataclass(frozen=True)
class Change:
    """An argument, and what each call does to it before it sends."""

    make: Callable[[], Any]
    apply: Callable[[Any], Any]
    key: str = ""
    """A template over it; else the key is the digest."""


CHANGES: dict[str, Change] = {
    "changes a field of a dict": Change(
        lambda: {"id": 1, "n": 0}, lambda order: order.update(n=order["n"] + 1)
    ),
    "takes from a list": Change(lambda: [1, 2, 3, 4, 5, 6], lambda order: order.pop()),
    "changes a nested list": Change(lambda: {"lines": [[1]]}, lambda order: order["lines"][0].append(2)),
    "changes a pydantic model": Change(Order, lambda order: order.lines.append(2)),
    "changes what its template names": Change(
        Order, lambda order: setattr(order, "id", order.id + 1), "message:{order.id}"
    ),
}


# -- something leaves besides the request


def _append(folder: Path) -> None:
    with open(folder / "ledger.txt", "a") as file:
        file.write("paid\n")


def _rename(folder: Path) -> None:
    with tempfile.NamedTemporaryFile("w", dir=folder, delete=False) as file:
        file.write("paid")
    os.replace(file.name, folder / "drop.csv")


def _fork(folder: Path) -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


def _spawn(folder: Path) -> None:
    subprocess.run(["/bin/true"], check=True)


BESIDES: dict[str, Callable[[Path], None]] = {
    "append to a file, then POST": _append,
    "rename a file, then POST": _rename,
    "fork, then POST": _fork,
    "start a program, then POST": _spawn,
}
FORKS = ("fork, then POST", "start a program, then POST")


def beside(leave: Callable[[Path], None], world: World, client: Client) -> Steps[Any]:
    leave(world.folder)
    world.receiver.take(BESIDE)
    return (yield Invoke(client.post, ("a",)))


def scratch_post(world: World, client: Client) -> Steps[Any]:
    """A temporary file is nothing that leaves."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "part").write_text("x")
        return (yield Invoke(client.post, ("a",)))


# -- a failed state instead of an error

STATES: dict[str, Callable[[Exception], Any]] = {
    "returns Failed": lambda error: Failed(data=error),
    "returns Failed, with a message": lambda error: Failed(message=str(error)),
    "returns Crashed": lambda error: Crashed(message="the process died"),
    "returns Cancelled": lambda error: Cancelled(message="by hand"),
    "returns a list with Failed": lambda error: [Completed(data=1), Failed(data=error)],
}


def returning(make: Callable[[Exception], Any], world: World, client: Client) -> Steps[Any]:
    try:
        return (yield Invoke(client.post, ("a",)))
    except Exception as error:
        return make(error)


# -- a plain function that returns an awaitable


def _a_plain_function(send: Callable[[], Any]) -> Callable[[], Any]:
    def pay() -> Any:
        return send()

    return pay


def _a_partial(send: Callable[[], Any]) -> Callable[[], Any]:
    def pay(call: Callable[[], Any]) -> Any:
        return call()

    return functools.partial(pay, send)


def _a_wrapper(send: Callable[[], Any]) -> Callable[[], Any]:
    @functools.wraps(send)
    def timed() -> Any:
        return send()

    return timed


def _an_object(send: Callable[[], Any]) -> Callable[[], Any]:
    class Payer:
        def __call__(self) -> Any:
            return send()

    return Payer()


AWAITABLES: dict[str, Callable[[Callable[[], Any]], Callable[[], Any]]] = {
    "a plain function that returns an awaitable": _a_plain_function,
    "a lambda that returns an awaitable": lambda send: lambda: send(),
    "a partial that returns an awaitable": _a_partial,
    "a plain wrapper around a coroutine function": _a_wrapper,
    "an object that returns an awaitable": _an_object,
}
