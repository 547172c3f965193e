"""A POST that is rejected with 429 proves that nothing happened, unless something else can have left.

Each function here does something else first, then makes one POST with the hook. The first answer is a 429,
the second one a 200. With proof the call is retried and succeeds; without it, it ends InDoubt after one POST.
"""

from __future__ import annotations

import asyncio
import contextvars
import csv
import ctypes
import gzip
import io
import logging
import logging.handlers
import mmap
import multiprocessing
import os
import pathlib
import pty
import shutil
import signal
import socket
import sqlite3
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from multiprocessing import shared_memory
from typing import Any

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


def written_by_pathlib(folder: pathlib.Path) -> None:
    (folder / "paid.txt").write_text("paid")


def opened_by_descriptor(folder: pathlib.Path) -> None:
    os.close(os.open(folder / "paid", os.O_WRONLY | os.O_CREAT))


def compressed(folder: pathlib.Path) -> None:
    with gzip.open(folder / "paid.gz", "wt") as file:
        file.write("paid")


def renamed(folder: pathlib.Path) -> None:
    with tempfile.NamedTemporaryFile("w", dir=folder, delete=False) as file:
        file.write("paid")
    os.replace(file.name, folder / "drop.csv")


def moved_and_taken(folder: pathlib.Path) -> None:
    """The reader of a drop folder removes the file at once."""
    with tempfile.NamedTemporaryFile("w", delete=False) as file:
        file.write("paid")
    shutil.move(file.name, folder / "drop.csv")
    os.system(f"rm {folder / 'drop.csv'}")


def linked(folder: pathlib.Path) -> None:
    os.link(__file__, folder / "link")


def symlinked(folder: pathlib.Path) -> None:
    os.symlink(__file__, folder / "link")


def made_a_folder(folder: pathlib.Path) -> None:
    (folder / "ready").mkdir()


def removed(folder: pathlib.Path) -> None:
    os.remove(folder / "there")


def touched(folder: pathlib.Path) -> None:
    (folder / "there").touch()


def labelled(folder: pathlib.Path) -> None:
    with suppress(OSError):  # not every file system has attributes
        os.setxattr(folder / "there", "user.sent", b"1")


def truncated(folder: pathlib.Path) -> None:
    os.truncate(folder / "there", 0)


def forked(folder: pathlib.Path) -> None:
    child = os.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)


def forked_with_a_terminal(folder: pathlib.Path) -> None:
    child, terminal = pty.fork()
    if child == 0:
        os._exit(0)
    os.waitpid(child, 0)
    os.close(terminal)


def spawned(folder: pathlib.Path) -> None:
    os.spawnv(os.P_WAIT, "/bin/true", ["true"])


def posix_spawned(folder: pathlib.Path) -> None:
    os.waitpid(os.posix_spawn("/bin/true", ["true"], {}), 0)


def opened_a_pipe(folder: pathlib.Path) -> None:
    os.popen("true").read()


def worked_in_a_process(folder: pathlib.Path) -> None:
    process = multiprocessing.get_context("spawn").Process(target=os.getpid)
    process.start()
    process.join()


def called_c(folder: pathlib.Path) -> None:
    ctypes.CDLL(None).getpid()


def shared_memory_written(folder: pathlib.Path) -> None:
    shared = shared_memory.SharedMemory(create=True, size=1)
    shared.close()
    shared.unlink()


def opened_sqlite(folder: pathlib.Path) -> None:
    sqlite3.connect(folder / "db").close()


def signalled(folder: pathlib.Path) -> None:
    os.kill(os.getpid(), signal.SIGURG)


LEAVING = [
    (signalled, "os.kill"),
    (appended, "open"),
    (written_by_pathlib, "open"),
    (opened_by_descriptor, "open"),
    (compressed, "open"),
    (renamed, "os.rename"),
    (moved_and_taken, "os.system"),
    (linked, "os.link"),
    (symlinked, "os.symlink"),
    (made_a_folder, "os.mkdir"),
    (removed, "os.remove"),
    (touched, "os.utime"),
    (labelled, "os.setxattr"),
    (truncated, "os.truncate"),
    (forked, "os.fork"),
    (forked_with_a_terminal, "os.forkpty"),
    (spawned, "os.fork"),
    (posix_spawned, "os.posix_spawn"),
    (opened_a_pipe, "subprocess.Popen"),
    (worked_in_a_process, "open '/dev/fd/"),
    (called_c, "ctypes"),
    (shared_memory_written, "mmap"),
    (opened_sqlite, "sqlite3.connect"),
]


@pytest.mark.parametrize(("leaves", "named"), LEAVING, ids=lambda one: getattr(one, "__name__", ""))
def test_what_leaves_beside_the_request(leaves, named, receiver, tmp_path):
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


# What cannot be meant.


def nothing(folder: pathlib.Path) -> None:
    return


def read_a_file(folder: pathlib.Path) -> None:
    (folder / "there").read_text()


def imported_a_module(folder: pathlib.Path) -> None:
    (folder / "new_module.py").write_text("import ctypes\nlibrary = ctypes.CDLL(None)\n")


def used_temporary_files(folder: pathlib.Path) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        (pathlib.Path(scratch) / "part").write_text("x")
        os.rename(pathlib.Path(scratch) / "part", pathlib.Path(scratch) / "whole")
        (pathlib.Path(scratch) / "folder").mkdir()
    for make in (tempfile.NamedTemporaryFile, tempfile.TemporaryFile, tempfile.SpooledTemporaryFile):
        with make() as file:
            file.write(b"x")


def discarded(folder: pathlib.Path) -> None:
    with open(os.devnull, "w") as nowhere:
        print("paid", file=nowhere)


def printed(folder: pathlib.Path) -> None:
    print("paid")
    sys.stderr.write("paid")


def asked_for_what_is_there(folder: pathlib.Path) -> None:
    os.makedirs(folder, exist_ok=True)
    (folder / "missing").unlink(missing_ok=True)


def wrote_in_memory(folder: pathlib.Path) -> None:
    csv.writer(io.StringIO()).writerow(["paid"])
    mmap.mmap(-1, 10).close()


def written_by_prefect(folder: pathlib.Path) -> None:
    storage = pathlib.Path(os.environ["PREFECT_HOME"], "storage")
    storage.mkdir(parents=True, exist_ok=True)
    (storage / "result").write_text("{}")


HARMLESS = [
    nothing,
    read_a_file,
    used_temporary_files,
    discarded,
    printed,
    asked_for_what_is_there,
    wrote_in_memory,
    written_by_prefect,
]


@pytest.mark.parametrize("harmless", HARMLESS, ids=lambda one: one.__name__)
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


@pytest.mark.parametrize("kind", ["file", "rotating", "datagram", "socket", "late"])
def test_a_log_handler_that_writes(kind, receiver, tmp_path):
    heard = socket.create_server(("127.0.0.1", 0))
    port = heard.getsockname()[1]
    log = tmp_path / "log.txt"
    handlers: dict[str, Callable[[], logging.Handler]] = {
        "file": lambda: logging.FileHandler(log),
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
