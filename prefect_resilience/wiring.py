"""Everything that importing the package registers. It connects lower layers to the layers above them."""

from __future__ import annotations

from prefect_resilience.base.edge import current_settings
from prefect_resilience.base.edge.current_run import is_in_run
from prefect_resilience.guards.circuits.listeners import Transition, transition_listeners
from prefect_resilience.guards.limits import shared
from prefect_resilience.guards.limits.edge import limits_api
from prefect_resilience.stores import urls
from prefect_resilience.telemetry.edge.events import announce_circuits


def wire() -> None:
    urls.circuits = current_settings.circuit_store_url
    urls.documents = current_settings.store_url
    shared.prefect_client = limits_api.prefect_client
    shared.lease_holder = limits_api.lease_holder
    announce_circuits()
    transition_listeners.add(_write_circuits_table)


def _write_circuits_table(change: Transition) -> None:
    if is_in_run():
        # Imported late: most processes never see a circuit change.
        from prefect_resilience.tasks.edge.circuits_table import keeper

        keeper.mark_changed()
