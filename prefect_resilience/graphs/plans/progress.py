"""How far a running plan is, for whoever wants to know."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Progress:
    """`ended` of the `total` nodes of a plan have ended, `running` of them are at work, `latest` ended last.

    `depth` is 0 for the plan itself and 1 for a plan in one of its nodes. `total` grows when nodes are added.
    """

    ended: int
    total: int
    running: int = 0
    latest: str = ""
    depth: int = 0


Listener = Callable[[Progress], None]

_listener: ContextVar[Listener | None] = ContextVar("prefect_resilience_plan_listener", default=None)


@contextmanager
def listening(listener: Listener) -> Generator[None]:
    """Have `listener` called whenever a node of a plan that is run inside this block begins or ends.

    It is called in the thread that runs the plan, and must be quick; what it raises is dropped.
    """
    token = _listener.set(listener)
    try:
        yield
    finally:
        _listener.reset(token)


def current_listener() -> Listener | None:
    return _listener.get()
