"""Helpers of the circuit tests: a clock that is set by hand, real processes, a clean table after each."""

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from prefect_resilience import CircuitBreaker
from prefect_resilience.errors.exceptions import StoreUnavailable
from prefect_resilience.guards.circuits.listeners import (
    StoreNotice,
    Transition,
    store_listeners,
    transition_listeners,
)
from prefect_resilience.guards.circuits.registry import forget_circuits
from prefect_resilience.stores import Document, MemoryStore
from tests.guards.circuits.workers import Member, fleet, run_code


class HandStore(MemoryStore):
    """A memory store whose clock stands still until it is set, and that fails when it is told to."""

    def __init__(self) -> None:
        super().__init__("memory://by-hand")
        self.time = 1_000_000.0
        self.away = False
        self.contacts = 0
        self.threads: set[int] = set()

    def now(self) -> float:
        return self.time

    def load(self, key: str) -> Document | None:
        self._contact()
        return super().load(key)

    def swap(self, key: str, *args: Any, **kwargs: Any) -> int:
        self._contact()
        return super().swap(key, *args, **kwargs)

    def scan(self, prefix: str, after: str | None = None, limit: int = 100) -> list[tuple[str, Document]]:
        self._contact()
        return super().scan(prefix, after, limit)

    def _contact(self) -> None:
        self.contacts += 1
        self.threads.add(threading.get_ident())
        if self.away:
            raise StoreUnavailable("the store is away")


@pytest.fixture
def start() -> Iterator[Callable[..., Member]]:
    """`start(code, url=...)` runs code in a process of its own, which shares nothing with this one."""
    with fleet() as begin:
        yield lambda code, **given: begin(run_code, code=code, **given)


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/fleet.db"


@pytest.fixture
def store() -> HandStore:
    return HandStore()


@pytest.fixture
def breaker(store: HandStore) -> CircuitBreaker:
    """A breaker that asks its store at every call, on a clock set by hand."""
    return CircuitBreaker("service", store=store, sync_interval=1e-9)


@pytest.fixture(autouse=True)
def _forget() -> Iterator[None]:
    forget_circuits()
    yield
    forget_circuits()


def _heard_by(listeners: Any) -> Iterator[list[Any]]:
    heard = list[Any]()
    listeners.add(heard.append)
    yield heard
    listeners.remove(heard.append)


@pytest.fixture
def transitions() -> Iterator[list[Transition]]:
    yield from _heard_by(transition_listeners)


@pytest.fixture
def notices() -> Iterator[list[StoreNotice]]:
    yield from _heard_by(store_listeners)
