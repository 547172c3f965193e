"""A POST that is rejected with 429 proves that nothing happened, unless something else can have left.

Each function here does something else first, then makes one POST with the hook. The first answer is a 429,
the second one a 200. With proof the call is retried and succeeds; without it, it ends InDoubt after one POST.
"""

import asyncio
import contextvars
import ctypes
import gzip
import logging
import logging.handlers
import mmap
import multiprocessing
import os
import pathlib
import pty
import shutil
import signal
import smtplib
import socket
import sqlite3
import sys
import tempfile
import threading
import time
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing import shared_memory
from typing import Any

import aiohttp
import grpc
import httpx
import psycopg
import pytest
import requests

from prefect_resilience import Backoff, InDoubt, Retry, Timeout, resilient
from prefect_resilience.calls.model import Guard
from prefect_resilience.durable.effects.recipes import source_of
from prefect_resilience.effects import Effect, send_idempotency_key
from prefect_resilience.testing import ScriptedService
from tests.durable.effects.ways.surroundings import Here, run_either

HOOKS: dict[str, Any] = {"event_hooks": {"request": [send_idempotency_key]}, "trust_env": False}
RETRY = Retry(attempts=2, backoff=Backoff.none(), retry_on=Exception)


class Receiver:
    """Rejects the first POST and takes the second one."""

    def __init__(self) -> None:
        self.service = ScriptedService(429, 200).on("/other", 200)
        self.url = self.service.url

    @property
    def posts(self) -> int:
        return sum(one.path == "/" for one in self.service.requests)

    def post(self) -> None:
        with httpx.Client(**HOOKS) as client:
            client.post(self.url).raise_for_status()


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    with made.service:
        yield made


def outcome(
    receiver: Receiver,
    fn: Callable[..., Any],
    *,
    store: str = "memory://other-traffic",
    parameters: dict[str, Any] | None = None,
    isasync: bool = False,
    timeout: Timeout | None = None,
    one_request: bool = False,
) -> str:
    """The word "retried", or why the effect is in doubt. The number of POSTs must fit."""
    given = parameters or {}
    effect = Effect(key="k", one_request=one_request)
    guard = Guard(fn, isasync, RETRY, timeout=timeout, effect=effect, source=source_of(fn))
    here = Here(str(time.monotonic_ns()), store, parameters=given)
    try:
        run_either(guard, here, arguments=tuple(given.values()))
    except InDoubt as doubt:
        assert receiver.posts == 1
        return str(doubt)
    assert receiver.posts == 2
    return "retried"


# What leaves beside the POST. Each is given a folder that the test looks at.


def appended(folder: pathlib.Path) -> None:
    with open(folder / "ledger.txt", "a") as file:
        file.write("paid")


def written_anew(folder: pathlib.Path) -> pathlib.Path:
    """A temporary file that stays."""
    with tempfile.NamedTemporaryFile("w", dir=folder, delete=False) as file:
        file.write("paid")
    return pathlib.Path(file.name)


def labelled(folder: pathlib.Path) -> None:
    with suppress(OSError):  # not every file system has attributes
        os.setxattr(folder / "there", "user.sent", b"1")


def forked(fork: Callable[[], int]) -> None:
    child = fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


def worked_in_a_process() -> None:
    process = multiprocessing.get_context("spawn").Process(target=os.getpid)
    process.start()
    process.join()


def shared_memory_written() -> None:
    shared = shared_memory.SharedMemory(create=True, size=1)
    shared.close()
    shared.unlink()


LEAVING: list[tuple[str, Callable[[pathlib.Path], Any]]] = [
    ("os.kill", lambda _: os.kill(os.getpid(), signal.SIGURG)),
    ("open", appended),
    ("open", lambda folder: os.close(os.open(folder / "paid", os.O_WRONLY | os.O_CREAT))),
    ("open", lambda folder: gzip.open(folder / "paid.gz", "wt").close()),
    ("os.rename", lambda folder: os.replace(written_anew(folder), folder / "drop.csv")),
    ("os.system", lambda folder: os.system(f"rm {written_anew(folder)}")),
    ("os.link", lambda folder: os.link(__file__, folder / "link")),
    ("os.mkdir", lambda folder: (folder / "ready").mkdir()),
    ("os.remove", lambda folder: os.remove(folder / "there")),
    ("os.setxattr", labelled),
    ("os.truncate", lambda folder: os.truncate(folder / "there", 0)),
    ("os.fork", lambda _: forked(os.fork)),
    ("os.forkpty", lambda _: forked(lambda: pty.fork()[0])),
    ("os.posix_spawn", lambda _: os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)),
    ("open '/dev/fd/", lambda _: worked_in_a_process()),
    ("ctypes", lambda _: ctypes.CDLL(None).getpid()),
    ("mmap", lambda _: shared_memory_written()),
    ("sqlite3.connect", lambda folder: sqlite3.connect(folder / "db").close()),
]


@pytest.mark.parametrize(("named", "leaves"), LEAVING)
def test_what_leaves_beside_the_request(named, leaves, receiver, tmp_path):
    (tmp_path / "there").write_text("x")

    def send() -> None:
        leaves(tmp_path)
        receiver.post()

    assert named in outcome(receiver, send)


def test_a_copied_context_is_watched_too(receiver, tmp_path):
    def send() -> None:
        thread = threading.Thread(target=contextvars.copy_context().run, args=(appended, tmp_path))
        thread.start()
        thread.join()
        receiver.post()

    assert "open" in outcome(receiver, send)


def test_an_async_function(receiver, tmp_path):
    async def send() -> None:
        await asyncio.to_thread(appended, tmp_path)
        async with httpx.AsyncClient(**HOOKS) as client:
            (await client.post(receiver.url)).raise_for_status()

    assert "open" in outcome(receiver, send, isasync=True)


def test_a_promise_of_one_request_allows_files_and_drivers_but_no_other_request(receiver, tmp_path):
    def send() -> None:
        appended(tmp_path)
        _ = psycopg.sql
        receiver.post()

    assert outcome(receiver, send, one_request=True) == "retried"


def test_another_request_contradicts_the_promise(receiver):
    def send() -> None:
        requests.post(receiver.url + "/other")
        receiver.post()

    why = outcome(receiver, send, one_request=True)
    assert "(socket.connect)" in why
    assert "one_request" not in why


async def posted_by_aiohttp(url: str) -> None:
    async with aiohttp.ClientSession() as session:
        await session.post(url)


def mailed(url: str) -> None:
    with suppress(smtplib.SMTPException, OSError):
        smtplib.SMTP("127.0.0.1", int(url.split(":")[2].split("/")[0]), timeout=0.2)


def datagram_sent(_: str) -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as opened:
        opened.sendto(b"x", ("127.0.0.1", 9))


OTHER_CLIENTS: dict[str, Callable[[str], Any]] = {
    "urllib": lambda url: urllib.request.urlopen(url, b"{}").close(),
    "requests": requests.post,
    "aiohttp": lambda url: asyncio.run(posted_by_aiohttp(url)),
    "smtplib": mailed,
    "a datagram": datagram_sent,
}


@pytest.mark.parametrize("send_other", OTHER_CLIENTS.values(), ids=OTHER_CLIENTS)
def test_a_request_of_another_client(send_other, receiver):
    def send() -> None:
        send_other(f"{receiver.url}/other")
        receiver.post()

    assert "did not see all traffic (socket." in outcome(receiver, send)


# What cannot be meant.


def used_temporary_files(_: pathlib.Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        (pathlib.Path(scratch) / "part").write_text("x")
        os.rename(pathlib.Path(scratch) / "part", pathlib.Path(scratch) / "whole")
        (pathlib.Path(scratch) / "folder").mkdir()
    for make in (tempfile.NamedTemporaryFile, tempfile.TemporaryFile, tempfile.SpooledTemporaryFile):
        with make() as file:
            file.write(b"x")


def printed(_: pathlib.Path) -> None:
    print("paid")
    with open(os.devnull, "w") as nowhere:
        print("paid", file=nowhere)


def asked_for_what_is_there(folder: pathlib.Path) -> None:
    os.makedirs(folder, exist_ok=True)
    (folder / "missing").unlink(missing_ok=True)


def written_by_prefect(folder: pathlib.Path) -> None:
    storage = pathlib.Path(os.environ["PREFECT_HOME"], "storage")
    storage.mkdir(parents=True, exist_ok=True)
    (storage / "result").write_text("{}")


HARMLESS: dict[str, Callable[[pathlib.Path], Any]] = {
    "nothing": lambda _: None,
    "a file that is read": lambda folder: (folder / "there").read_text(),
    "temporary files": used_temporary_files,
    "what is printed": printed,
    "what is there already": asked_for_what_is_there,
    "a map of memory": lambda _: mmap.mmap(-1, 10).close(),
    "what Prefect writes": written_by_prefect,
}


@pytest.mark.parametrize("harmless", HARMLESS.values(), ids=HARMLESS)
def test_what_cannot_be_meant(harmless, receiver, tmp_path, monkeypatch):
    monkeypatch.setenv("PREFECT_HOME", str(tmp_path / "home"))
    (tmp_path / "there").write_text("x")

    def send() -> None:
        harmless(tmp_path)
        receiver.post()

    assert outcome(receiver, send) == "retried"


def test_a_module_imported_inside(receiver, tmp_path, monkeypatch):
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "dont_write_bytecode", False)
    (tmp_path / "imported_late.py").write_text("import ctypes\nlibrary = ctypes.CDLL(None)\n")

    def send() -> None:
        import imported_late  # noqa: F401 # pyright: ignore

        receiver.post()

    assert outcome(receiver, send) == "retried"
    assert [*tmp_path.glob("__pycache__/*.pyc")]


def test_a_folder_that_is_temporary_is_not_enough(receiver):
    """A file in the temporary folder that another process took away was delivered."""
    folder = pathlib.Path(tempfile.mkdtemp())

    def send() -> None:
        (folder / "paid").write_text("x")
        shutil.rmtree("/nonexistent", ignore_errors=True)
        taken()
        receiver.post()

    def taken() -> None:
        thread = threading.Thread(target=os.remove, args=(folder / "paid",))
        thread.start()
        thread.join()

    assert "open" in outcome(receiver, send)
    folder.rmdir()


@pytest.mark.parametrize("kind", ["rotating", "datagram", "socket", "late"])
def test_a_log_handler_that_writes(kind, receiver, tmp_path):
    heard = socket.create_server(("127.0.0.1", 0))
    port = heard.getsockname()[1]
    log = tmp_path / "log.txt"
    handlers: dict[str, Callable[[], logging.Handler]] = {
        "late": lambda: logging.FileHandler(log, delay=True),
        "rotating": lambda: logging.handlers.RotatingFileHandler(log, maxBytes=1, backupCount=2),
        "datagram": lambda: logging.handlers.DatagramHandler("127.0.0.1", port),
        "socket": lambda: logging.handlers.SocketHandler("127.0.0.1", port),
    }
    handler = handlers[kind]()
    logger = logging.getLogger(f"{__name__}.{kind}")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)

    def send() -> None:
        for _ in range(3):
            logger.info("paying")
        receiver.post()

    try:
        assert outcome(receiver, send) == "retried"
    finally:
        logger.removeHandler(handler)
        handler.close()
        heard.close()


# Each of our stores.


def _store_urls(request: pytest.FixtureRequest, tmp_path: pathlib.Path) -> dict[str, Callable[[], str]]:
    return {
        "memory": lambda: "memory://quiet",
        "sqlite": lambda: f"sqlite:///{tmp_path}/effects.db",
        "postgres": lambda: request.getfixturevalue("postgres_server_url"),
        "redis": lambda: request.getfixturevalue("redis_server_url"),
    }


@pytest.mark.parametrize("kind", ["memory", "sqlite", "postgres", "redis"])
def test_our_own_stores_are_no_traffic(kind, receiver, request, tmp_path):
    """Also the store of a circuit that is first opened inside the function."""
    url = _store_urls(request, tmp_path)[kind]()

    @resilient(circuit=f"other-traffic-{kind}")
    def guarded() -> None:
        receiver.post()

    assert grpc.__name__ in sys.modules
    assert outcome(receiver, guarded, store=url) == "retried"
