"""Who is told when an error budget begins to burn."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prefect_resilience.guards.budgets.model import BudgetStatus

BurnListener = Callable[["BudgetStatus"], object]

listeners: tuple[BurnListener, ...] = ()
"""Replaced, never changed, so that reading it needs no lock."""


def add_burn_listener(listener: BurnListener) -> BurnListener:
    """Call `listener(status)` when a budget begins to burn, in the one process that brought it about."""
    global listeners
    if listener not in listeners:
        listeners = (*listeners, listener)
    return listener
