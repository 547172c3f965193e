"""What a function does: one request, two of them, something after them. Written once for both manners."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any
from uuid import uuid4

from prefect_resilience import Bulkhead, CircuitBreaker, NotSent, RateLimit
from prefect_resilience.base.drive import Invoke, Steps, adrive, drive
from tests.durable.effects.ways import ordinary_shapes as ordinary
from tests.durable.effects.ways.clients import Client
from tests.durable.effects.ways.world import World

Shape = Callable[[World, Client], Steps[Any]]


def one(world: World, client: Client) -> Steps[Any]:
    return (yield Invoke(client.post, ("a",)))


def post_get(world: World, client: Client) -> Steps[Any]:
    value = yield Invoke(client.post, ("a",))
    yield Invoke(client.get)
    return value


def get_post(world: World, client: Client) -> Steps[Any]:
    yield Invoke(client.get)
    return (yield Invoke(client.post, ("a",)))


def post_post(world: World, client: Client) -> Steps[Any]:
    yield Invoke(client.post, ("a",))
    return (yield Invoke(client.post, ("b",)))


def late_post(world: World, client: Client) -> Steps[Any]:
    return (yield Invoke(client.post_late, ("a",)))


def send_compute(world: World, client: Client) -> Steps[Any]:
    value = yield Invoke(client.post, ("a",))
    if world.first:
        raise ValueError("the answer has no total")
    return value


def not_sent(world: World, client: Client) -> Steps[Any]:
    if world.first:
        raise NotSent("the template is empty")
    return (yield Invoke(client.post, ("a",)))


def send_circuit(world: World, client: Client) -> Steps[Any]:
    """A circuit inside the function refuses what comes after the message."""
    value = yield Invoke(client.post, ("a",))
    if world.first:
        circuit = shut_circuit()
        yield Invoke(circuit.acall if client.isasync else circuit.call, (len, ()))
    return value


def send_limit(world: World, client: Client) -> Steps[Any]:
    """A limit inside the function refuses what comes after the message."""
    value = yield Invoke(client.post, ("a",))
    if world.first:
        limit = used_up()
        yield Invoke(limit.acall if client.isasync else limit.call, (len, ()))
    return value


def shut_circuit() -> CircuitBreaker:
    circuit = CircuitBreaker("audit", store=f"memory://{uuid4().hex}")
    circuit.force_open("closed for the night")
    return circuit


def used_up() -> RateLimit:
    limit = RateLimit(1, per=60, max_wait=0)
    limit.call(len, ())
    return limit


# -- guards that refuse before the function is entered, at the first attempt


@dataclass
class Gate:
    """A guard around the function, and how to open it before the second attempt."""

    options: dict[str, Any]
    open: Callable[[], None]


def circuit_gate() -> Gate:
    circuit = shut_circuit()
    return Gate({"circuit": circuit}, circuit.reset)


def bulkhead_gate() -> Gate:
    """Somebody else has the only place until the second attempt."""
    bulkhead = Bulkhead(1, max_wait=0)
    ticket = drive(bulkhead.acquire())
    return Gate({"limits": (bulkhead,)}, lambda: drive(bulkhead.finish(ticket)))


def function(shape: str, world: World, make: type[Client]) -> Callable[..., Any]:
    """The function that a user decorates."""

    def whole() -> Steps[Any]:
        client = make(world)
        try:
            return (yield from SHAPES[shape](world, client))
        finally:
            yield Invoke(client.close)

    async def send_async() -> Any:
        world.enter()
        with world.going_on():
            return await adrive(whole())

    def send() -> Any:
        world.enter()
        with world.going_on():
            return drive(whole())

    made = send_async if make.isasync else send
    if shape in ordinary.CHANGES:
        return changing(ordinary.CHANGES[shape], made, make.isasync)
    return ordinary.AWAITABLES[shape](made) if shape in ordinary.AWAITABLES else made


def changing(change: ordinary.Change, send: Callable[[], Any], isasync: bool) -> Callable[..., Any]:
    async def charge_async(order: Any) -> Any:
        change.apply(order)
        return await send()

    def charge(order: Any) -> Any:
        change.apply(order)
        return send()

    return charge_async if isasync else charge


SHAPES: dict[str, Shape] = {
    "one request": one,
    "redirect": one,
    "retries inside": one,
    "POST, then GET": post_get,
    "GET, then POST": get_post,
    "POST, then POST": post_post,
    "send, then compute": send_compute,
    "send, then a circuit rejects": send_circuit,
    "send, then a rate limit rejects": send_limit,
    "a circuit rejects before": one,
    "a bulkhead rejects before": one,
    "NotSent before": not_sent,
    "long work, then send": late_post,
    "write a temporary file, then POST": ordinary.scratch_post,
    "has a cache_policy": one,
    "gets a cache_policy by with_options": one,
    **dict.fromkeys((*ordinary.CHANGES, *ordinary.AWAITABLES), one),
    **{shape: partial(ordinary.beside, leave) for shape, leave in ordinary.BESIDES.items()},
    **{shape: partial(ordinary.returning, make) for shape, make in ordinary.STATES.items()},
}
MESSAGES = {"POST, then POST": ("a", "b"), **dict.fromkeys(ordinary.BESIDES, (ordinary.BESIDE, "a"))}
GATES: dict[str, Callable[[], Gate]] = {
    "a circuit rejects before": circuit_gate,
    "a bulkhead rejects before": bulkhead_gate,
}
