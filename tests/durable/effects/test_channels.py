"""Which drivers and open connections a function reaches: by name, by object, and through a library."""

import asyncio
import contextvars
import functools
import importlib
import logging
import mmap
import multiprocessing
import socket
import sqlite3
import sys
import tempfile
import threading
import types
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import grpc
import httpx
import openai
import pandas
import psycopg
import pydantic
import pytest
import requests
import sqlalchemy
from psycopg import sql as statements

from prefect_resilience import CircuitBreaker, resilient, resilient_task
from prefect_resilience.durable.effects.channels import find_unwatched_channel
from prefect_resilience.effects import idempotency_key, send_idempotency_key
from prefect_resilience.testing import ScriptedService


def channel(*roots: object) -> str | None:
    found = find_unwatched_channel(*roots)
    return found and found.removeprefix("perhaps by ")


HOOKS: dict[str, Any] = {"event_hooks": {"request": [send_idempotency_key]}, "trust_env": False}
LOG = logging.getLogger(__name__)
BREAKER = CircuitBreaker("channels", store="redis://127.0.0.1:1/0")
assert grpc


def post() -> None:
    with httpx.Client(**HOOKS) as client:
        client.post("http://nowhere").raise_for_status()


# By name.


def by_module() -> None:
    psycopg.connect("")
    post()


def by_import() -> None:
    import psycopg as driver

    driver.connect("")


class Repository:
    def save(self) -> None:
        self._insert()

    @staticmethod
    def _insert() -> None:
        psycopg.connect("")


class Inherited(Repository):
    pass


@resilient_task
def task() -> None:
    by_module()


def by_default(connect: Any = psycopg.connect) -> None:
    connect("")


REACHES: dict[str, Any] = {
    "a module": by_module,
    "a member": lambda: statements.SQL("insert into paid values (1)"),
    "an import": by_import,
    "the name of a module": lambda: importlib.import_module("psycopg").connect(""),
    "a class": lambda: Inherited().save(),
    "a method": Inherited().save,
    "a single dispatch": functools.singledispatch(by_module),
    "a guarded function": resilient(by_module),
    "a task": lambda: task(),
    "a default": by_default,
}


@pytest.mark.parametrize("name", REACHES)
def test_a_driver_is_reached(name):
    assert channel(REACHES[name]) == "psycopg"


def test_the_user_s_own_modules_are_read_by_the_names_that_are_used(monkeypatch):
    shop, tables = types.ModuleType("shop"), types.ModuleType("shop.tables")
    tables.insert, tables.count = by_module, post
    shop.tables = tables
    monkeypatch.setitem(sys.modules, "shop", shop)
    monkeypatch.setitem(sys.modules, "shop.tables", tables)
    here: dict[str, Any] = {"shop": shop, "__name__": "orders", "__package__": "shop"}
    code = """
def inserts(): shop.tables.insert()
def counts(): shop.tables.count()
def imports(): from shop.tables import insert; insert()
def imports_relatively(): from .tables import insert; insert()
"""
    exec(code, here)
    assert channel(here["inserts"]) == "psycopg"
    assert channel(here["imports"]) == "psycopg"
    assert channel(here["imports_relatively"]) == "psycopg"
    assert channel(here["counts"]) is None


def test_a_library_is_read_by_what_it_imports():
    from google.api_core import grpc_helpers

    def send() -> None:
        grpc_helpers.create_channel("nowhere")

    assert channel(send) == "grpc (used by google.api_core.grpc_helpers)"


# By object.


@dataclass
class Order:
    number: int = 1
    session: Any = None
    parts: list[Any] = field(default_factory=list[Any])


class Model(pydantic.BaseModel):
    number: int = 1


CURRENT: contextvars.ContextVar[Any] = contextvars.ContextVar("current")
LOCAL = threading.local()


def a_file() -> Any:
    return tempfile.TemporaryFile("w")


def an_engine() -> Any:
    return sqlalchemy.create_engine("postgresql+psycopg://nowhere")


@pytest.mark.parametrize(
    ("make", "named"),
    [
        (lambda: sqlite3.connect(":memory:"), "sqlite3"),
        (socket.socketpair, "an open socket"),
        (a_file, "an open file"),
        (multiprocessing.Pipe, "multiprocessing.connection"),
        (lambda: multiprocessing.get_context("spawn").Queue(), "multiprocessing.connection"),
        (lambda: mmap.mmap(-1, 10), "mmap"),
        (an_engine, "sqlalchemy"),
    ],
)
def test_an_open_connection_is_reached(make, named):
    thing = make()

    def by_closure() -> None:
        thing.write("x")

    def by_parameter(order: Order) -> None:
        order.session.write("x")

    assert channel(by_closure) == named
    assert channel(by_parameter, Order(session=thing)) == named
    assert channel(by_parameter, {"parts": [(1, [thing])]}) == named
    assert channel(functools.partial(by_parameter, thing)) == named


def test_what_is_kept_for_a_context_or_a_thread():
    connection = sqlite3.connect(":memory:")
    LOCAL.connection = connection
    CURRENT.set(connection)

    def by_thread() -> None:
        LOCAL.connection.execute("")

    def by_context() -> None:
        CURRENT.get().execute("")

    assert channel(by_thread) == "sqlite3"
    assert channel(by_context) == "sqlite3"


@pytest.fixture
def service() -> Iterator[ScriptedService]:
    with ScriptedService(200) as service:
        yield service


def test_connections_that_clients_keep(service):
    """An audit event shows each request of `requests`; nothing shows those of the other two."""
    with requests.Session() as session, httpx.Client() as bare, httpx.Client(**HOOKS) as witnessed:
        for client in (session, bare, witnessed):
            client.get(service.url)
        assert channel(post, session) is None
        assert channel(post, witnessed) is None
        assert channel(post, openai.OpenAI(api_key="x", http_client=witnessed)) is None
        assert channel(post, bare) == "an open socket"
    assert channel(post, bare) is None


def test_a_hook_that_calls_ours(service):
    def hook(request: httpx.Request) -> None:
        send_idempotency_key(request)

    with httpx.Client(event_hooks={"request": [hook]}, trust_env=False) as client:
        client.get(service.url)
        assert channel(post, client) is None


async def test_a_connection_of_an_event_loop(service):
    async with aiohttp.ClientSession() as session:
        assert channel(post, session) is None
        async with session.get(service.url) as answer:
            await answer.read()
        assert channel(post, session) == "an open connection of asyncio"
    _, writer = await asyncio.open_connection("127.0.0.1", int(service.url.rpartition(":")[2]))
    assert channel(post, writer) == "an open connection of asyncio"
    writer.close()


# What is not reached.


def reads_the_log() -> None:
    LOG.info("paying %s", idempotency_key())
    post()


def is_guarded() -> None:
    BREAKER.call(post)


def converts() -> None:
    pandas.DataFrame({"a": [1]}).to_json()
    post()


@pytest.mark.parametrize("function", [post, reads_the_log, is_guarded, converts], ids=lambda fn: fn.__name__)
def test_what_is_loaded_and_not_used(function):
    """grpc and psycopg are imported by this module, and psycopg is used by others of its functions."""
    assert channel(function) is None


@pytest.mark.parametrize(
    "value",
    [
        Order(),
        Model(),
        pandas.DataFrame({"a": [1]}),
        threading.Lock(),
        [{"number": n, "name": f"order {n}"} for n in range(20_000)],
        BREAKER,
        httpx.Client(),
        openai.OpenAI(api_key="x"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_parameters_that_send_nothing(value):
    assert channel(post, value) is None


def test_what_is_too_much_to_search():
    assert (
        find_unwatched_channel(post, [[[n]] for n in range(60_000)])
        == "perhaps by more than 50000 objects that it may use"
    )


def test_what_cannot_be_searched_proves_nothing():
    class Hostile:
        @property
        def event_hooks(self) -> Any:
            raise RuntimeError

    class Task(Hostile):
        fn = Hostile.event_hooks

    Task.__module__ = Hostile.__module__ = "prefect.tasks"
    assert find_unwatched_channel(post, Task()) == "perhaps by objects that cannot be searched (RuntimeError)"


class Shop:
    """A service object of which the function names one attribute."""

    def __init__(self) -> None:
        self.url = "http://nowhere"
        self.database = sqlite3.connect(":memory:")

    def count(self) -> None:
        self.database.execute("")


def test_members_count_when_code_names_them():
    shop = Shop()

    def reads_the_address() -> None:
        httpx.post(shop.url)

    def counts() -> None:
        shop.count()

    def chooses(name: str) -> None:
        getattr(shop, name)

    assert find_unwatched_channel(reads_the_address) is None
    assert channel(counts) == "sqlite3"
    assert channel(chooses) == "sqlite3"
