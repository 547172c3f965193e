"""Everything that importing the package registers. It connects lower layers to the layers above them.

What it registers imports the upper layer when it is called: most processes need little of it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

from prefect_resilience.base import places
from prefect_resilience.base.edge.current_settings import (
    circuit_store_url,
    current_settings,
    run_contexts,
    store_url,
)
from prefect_resilience.guards import limits
from prefect_resilience.guards.circuits.listeners import (
    StoreNotice,
    Transition,
    burn_listeners,
    cap_listeners,
    store_listeners,
    transition_listeners,
)

if TYPE_CHECKING:
    from uuid import UUID

    from prefect.client.orchestration import SyncPrefectClient

    from prefect_resilience.guards.budgets.model import BudgetStatus
    from prefect_resilience.guards.limits.spend import Spending


def wire() -> None:
    places.circuits = circuit_store_url
    places.documents = store_url
    places.grace_seconds = lambda: current_settings().grace_seconds
    limits.prefect_client = _prefect_client
    limits.lease_holder = _lease_holder
    limits.root_run = _root_run
    transition_listeners.add(_circuit_changed)
    store_listeners.add(_store_changed)
    burn_listeners.add(_budget_burns)
    cap_listeners.add(_cap_reached)


def _prefect_client() -> AbstractContextManager[SyncPrefectClient]:
    from prefect_resilience.tasks.edge.limits_api import prefect_client

    return prefect_client()


def _lease_holder(run: tuple[str, UUID] | None) -> Any:
    from prefect_resilience.tasks.edge.limits_api import lease_holder

    return lease_holder(run)


def _root_run() -> str | None:
    """Without Prefect's API, a subflow's calls count as those of its process."""
    if run_contexts() == (None, None):
        return None
    from prefect_resilience.durable.batches.edge.tags import pass_here
    from prefect_resilience.errors.exceptions import StoreUnavailable

    try:
        return pass_here()[0][0]
    except StoreUnavailable:
        return None


def _circuit_changed(change: Transition) -> None:
    from prefect_resilience.telemetry.edge.events import announce_transition

    announce_transition(change)
    if run_contexts() != (None, None):
        from prefect_resilience.tasks.edge.artifacts import keeper

        keeper.mark_changed()


def _store_changed(notice: StoreNotice) -> None:
    from prefect_resilience.telemetry.edge.events import announce_store

    announce_store(notice)


def _budget_burns(status: BudgetStatus) -> None:
    from prefect_resilience.telemetry.edge.events import announce_burn

    announce_burn(status)


def _cap_reached(spending: Spending) -> None:
    from prefect_resilience.telemetry.edge.events import announce_cap

    announce_cap(spending)
