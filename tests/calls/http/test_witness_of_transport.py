"""An external effect whose one POST goes through a resilient transport, and each fault on its way.

What left nothing or was refused is tried again by itself. Of everything else a person is told, or `verify` is
asked. The server never executes it twice.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Any
from uuid import uuid4

import httpx
import pytest

from prefect_resilience import CircuitBreaker, Done, Effect, NotDone, Retry, Timeout, batch, resilient
from prefect_resilience.errors.exceptions import AttemptTimeout, CircuitOpenError, InDoubt
from prefect_resilience.guards.retries.backoff import Backoff
from prefect_resilience.guards.timeouts.threads import overdue_calls
from tests.calls.http.faults import PASSING, UNKNOWN, World
from tests.calls.http.server import Act, Server
from tests.calls.http.webs import AT_ONCE, Web, until

OUTER = Retry(attempts=4, backoff=Backoff.none(), retry_exhausted=True)


@pytest.fixture
def world(server: Server, other: Server) -> World:
    return World(server, other, [f"{server.url}/orders"])


@pytest.fixture(params=["none inside", "retries inside"])
def inside(request: pytest.FixtureRequest) -> Retry | None:
    """The retries of the transport, within those of the effect."""
    return AT_ONCE if request.param == "retries inside" else None


class Order:
    """The effect. It may be asked for several times, as by the retries of a flow."""

    def __init__(self, web: Web, world: World, *, verified: bool = False) -> None:
        self.web = web
        self.world = world
        self.batch = f"orders-{uuid4().hex}"
        verify = self._verify if verified else None
        self._call = resilient(effect=Effect(kind="external", key="order", verify=verify), retry=OUTER)(
            self._apost if web.isasync else self._post
        )

    def _verify(self, key: str) -> Done | NotDone:
        return Done({"verified": key}) if self.world.executed else NotDone()

    def _post(self) -> Any:
        try:
            answer = self.web.client.post(self.world.url, **self._options())
            return answer.raise_for_status().json()
        except Exception:
            self.world.after()
            raise

    async def _apost(self) -> Any:
        try:
            answer = await self.web.client.post(self.world.url, **self._options())
            return answer.raise_for_status().json()
        except Exception:
            self.world.after()
            raise

    def _options(self) -> dict[str, Any]:
        made = {"json": {}, **self.world.options}
        if callable(pieces := made.get("content")):
            made.pop("json")
            made["content"] = self.web.pieces(pieces())
        return made

    def __call__(self) -> Any:
        async def acall() -> Any:
            with batch(self.batch):
                return await self._call()

        if self.web.isasync:
            return self.web.run(acall())
        with batch(self.batch):
            return self._call()


@pytest.fixture
def order(make_web: Callable[..., Web], world: World, inside: Retry | None) -> Callable[..., Order]:
    def make(**options: Any) -> Order:
        web = make_web(client=world.client, **{"retry": inside, **world.transport})
        return Order(web, world, **options)

    return make


# -- nothing left, or it was refused and may pass


@pytest.mark.parametrize("fault", PASSING)
def test_what_left_nothing_is_tried_again_by_itself(order, world, fault):
    PASSING[fault](world)
    one = order()
    assert one() == {}
    assert world.executed == 1
    assert one() == {}, "it is replayed"
    assert world.executed == 1
    assert {seen.headers["idempotency-key"] for seen in world.server.seen} == {"order"}


# -- it was refused for good: an error, and no doubt


@pytest.mark.parametrize("status", [400, 404, 413, 422])
def test_a_refusal_is_an_error_and_no_doubt(order, world, status):
    world.server.says(status)
    one = order()
    with pytest.raises(httpx.HTTPStatusError):
        one()
    assert len(world.server.seen) == 1
    world.server.says(200)
    assert one() == {}, "once the cause is mended, it is sent"
    assert world.executed == 1


def test_an_open_circuit_is_no_doubt(order, world):
    circuit = CircuitBreaker("http:{host}", failure_threshold=1, open_for=60)
    world.transport = {"circuit": circuit}
    circuit.bind({"host": world.server.host}).force_open("maintenance")
    one = order()
    with pytest.raises(CircuitOpenError):
        one()
    assert world.server.seen == []
    circuit.bind({"host": world.server.host}).reset()
    assert one() == {}
    assert world.executed == 1


# -- it left, and nobody knows what became of it


@pytest.mark.parametrize("fault", UNKNOWN)
def test_what_left_ends_in_doubt(order, world, fault):
    UNKNOWN[fault][0](world)
    one = order()
    with pytest.raises(InDoubt):
        one()
    assert world.asked == 1
    assert len([seen for seen in world.server.seen if seen.path != "/there"]) <= 1
    with pytest.raises(InDoubt):
        one()
    assert world.asked == 1, "nor is it sent by a later attempt"
    assert world.executed <= 1


@pytest.mark.parametrize("fault", UNKNOWN)
def test_what_left_is_asked_for(order, world, fault):
    made, outcome = UNKNOWN[fault]
    made(world)
    one = order(verified=True)
    if isinstance(outcome, type):
        with pytest.raises(outcome):
            one()
        assert world.executed == 0
        return
    assert one() == ({} if outcome == "sent" else {"verified": "order"})
    assert world.executed == 1
    assert one() == ({} if outcome == "sent" else {"verified": "order"})
    assert world.executed == 1


@pytest.mark.parametrize("way", ["sync"])  # an async attempt ends at its deadline
def test_an_attempt_that_is_over_sends_nothing_any_more(make_web, world, tmp_path):
    """It waits for a connection when its time is up. When the connection comes, another attempt may have been
    made."""
    taken: list[bytes] = []
    with socket.socket(socket.AF_UNIX) as full:
        full.bind(str(tmp_path / "s"))
        full.listen(0)
        first = socket.socket(socket.AF_UNIX)
        first.connect(str(tmp_path / "s"))
        inner = httpx.HTTPTransport(uds=str(tmp_path / "s"))
        web = make_web(transport=inner, timeout=Timeout(0.1, mode="thread"), client={"timeout": None})
        with pytest.raises(AttemptTimeout):
            Order(web, world, verified=True)()
        waiting = overdue_calls()
        first.close()
        full.settimeout(5)
        for _ in range(waiting + 1):
            with full.accept()[0] as one:
                one.settimeout(5)
                taken.append(one.recv(1000))
    assert waiting == OUTER.attempts
    assert taken == [b""] * (waiting + 1)
    assert until(lambda: overdue_calls() == 0)


# -- more than one request


def test_reading_before_it_is_retried(order, world):
    """A GET takes no effect: its failures are retried inside, and it proves nothing about the POST."""

    class Read(Order):
        def _post(self) -> Any:
            self.web.client.get(f"{self.world.server.url}/price").raise_for_status()
            return super()._post()

        async def _apost(self) -> Any:
            (await self.web.client.get(f"{self.world.server.url}/price")).raise_for_status()
            return await super()._apost()

    world.server.says(Act(503), Act(200, executed=False), 200)
    one = Read(order().web, world)
    if one.web.transport._guard.retry.attempts == 1:
        with pytest.raises(InDoubt):
            one()
    else:
        assert one() == {}
        assert world.executed == 1


def test_another_server_is_not_asked(make_web, world):
    web = make_web(fallback=world.other.url)
    world.server.says(Act(503, executed=True))
    with pytest.raises(InDoubt):
        Order(web, world)()
    assert world.other.seen == []
    assert world.executed == 1


def test_an_idempotent_effect_is_sent_again_with_its_key(make_web, world):
    """Its receiver knows the key: also a POST is repeated by the transport."""
    web = make_web()
    world.server.says(503, Act(cut="after"), 200)

    def body() -> Any:
        return web.client.post(world.url, content=b"x").raise_for_status().json()

    async def abody() -> Any:
        return (await web.client.post(world.url, content=b"x")).raise_for_status().json()

    call = resilient(effect=Effect(kind="idempotent", key="order"), retry=None)(
        abody if web.isasync else body
    )

    async def acall() -> Any:
        with batch(f"orders-{uuid4().hex}"):
            return await call()

    if web.isasync:
        assert web.run(acall()) == {}
    else:
        with batch(f"orders-{uuid4().hex}"):
            assert call() == {}
    assert [seen.headers["idempotency-key"] for seen in world.server.seen] == ["order"] * 3
