"""Changes of adaptive limits, for those who want to hear of them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from prefect_resilience.guards.circuits.listeners import Listeners


@dataclass(frozen=True, slots=True)
class LimitChange:
    """The number of a limit in this process has changed; `fleet` is the sum over all processes."""

    name: str
    before: int
    after: int
    fleet: int
    processes: int


change_listeners: Listeners[Callable[[LimitChange], object]] = Listeners()
