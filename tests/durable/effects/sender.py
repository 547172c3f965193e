"""A process that makes the effect `pay:7` of batch `b`, and is suspended or hangs in the middle of it."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import requests

from prefect_resilience import resilient
from prefect_resilience.durable.effects import owner, sequences
from prefect_resilience.effects import Effect, NotDone, batch
from prefect_resilience.errors.exceptions import StoreUnavailable
from prefect_resilience.http import ResilientAdapter

SHORT = {"LEASE_SECONDS": 0.4, "QUIET_SECONDS": 0.4, "RENEW_SECONDS": 0.1, "TICK_SECONDS": 0.02}
LONG_PAUSE = 0.5
LAPSED = 1.2
"""Seconds after which every lease and quiet time of these tests is over."""


def mark(folder: Path, name: str) -> None:
    with open(folder / name, "a") as file:
        file.write(f"{os.getpid()}\n")


def wait_for(path: Path) -> None:
    while not path.exists():
        time.sleep(0.01)


def payment(
    work: Callable[[], int], verify: Callable[..., Any], max_wait: float = 30.0
) -> Callable[..., Any]:
    """The effect, which calls `work`."""

    @resilient(effect=Effect(key="pay:{order}", verify=verify, max_wait=max_wait), retry=None)
    def pay(order: int) -> int:
        return work()

    return pay


def send(folder: Path, url: str, how: str) -> None:
    """Runs in a process of its own, and writes how it ended to the file "said"."""
    os.environ["PREFECT_RESILIENCE_STORE_URL"] = url
    for name, value in SHORT.items():
        setattr(owner, name, value)
    sequences.LONG_PAUSE = LONG_PAUSE
    if "elsewhere" in how:
        owner._machine = lambda: ["another machine", "pid:[1]"]

    def work() -> int:
        mark(folder, "entered")
        _pause(folder, how)
        if "sends by requests" in how:
            session = requests.Session()
            session.mount("http://", ResilientAdapter(retry=None))
            session.post("http://127.0.0.1:1")
        mark(folder, "sent")
        return os.getpid()

    try:
        with batch("b"):
            said = str(payment(work, lambda key: NotDone())(7))
    except BaseException as error:
        said = repr(error)
    (folder / "said").write_text(said)


def _pause(folder: Path, how: str) -> None:
    here = owner._owners[0]
    if "loses its store" in how:

        def away(*_: Any) -> int:
            raise StoreUnavailable("the store is away")

        store: Any = here.store
        real, store.swap = store.swap, away
        wait_for(folder / "go")
        store.swap = real
    else:
        if "is stopped" in how:
            while here._reports:
                time.sleep(0.01)
            with here._renewing:  # it holds no lock of the store
                os.kill(os.getpid(), signal.SIGSTOP)
        wait_for(folder / "go")
