"""The circuits of a whole fleet, as their store knows them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from prefect_resilience.guards.circuits import machine, registry
from prefect_resilience.guards.circuits.breaker import CircuitBreaker, remake
from prefect_resilience.guards.circuits.link import PREFIX
from prefect_resilience.guards.circuits.model import CircuitPolicy, CircuitSnapshot
from prefect_resilience.guards.circuits.view import snapshot_of
from prefect_resilience.stores import Store
from prefect_resilience.stores.base import scan_all


def get_circuit(name: str, store: registry.StoreReference = None) -> CircuitBreaker:
    """The breaker of this name: as this process declared it, else one with the default policy.

    `name` is taken literally, as in a snapshot: it is not a template.
    """
    circuit = registry.circuit_in_use(name, store)
    policy = circuit.policy if circuit is not None else CircuitPolicy()
    return remake(name, policy, store)


def get_circuits(store: registry.StoreReference = None) -> list[CircuitSnapshot]:
    """Every circuit in the store, by name. Raises StoreUnavailable when the store does not answer.

    Example:
        >>> CircuitBreaker("labels").force_open("maintenance")
        >>> [(circuit.name, circuit.state) for circuit in get_circuits()]
        [('labels', 'forced_open')]
    """
    registry.flush_all()
    return registry.link_to(store).exchange(_read_all)


def reset_all_circuits(store: registry.StoreReference = None) -> int:
    """Reset every circuit in the store and return their number. Raises StoreUnavailable.

    Example:
        >>> CircuitBreaker("labels").force_open("maintenance")
        >>> reset_all_circuits()
        1
    """
    snapshots = get_circuits(store)
    for snapshot in snapshots:
        get_circuit(snapshot.name, store).reset()
    return len(snapshots)


def _read_all(store: Store) -> list[CircuitSnapshot]:
    now = store.now()
    return [snapshot_of(name, machine.read(value), now) for name, value in read_values(store)]


def read_values(store: Store) -> Iterator[tuple[str, Any]]:
    """The name and the stored value of each circuit; `machine.read` turns the value into a document."""
    for key, document in scan_all(store, PREFIX):
        yield key.removeprefix(PREFIX), document.value
