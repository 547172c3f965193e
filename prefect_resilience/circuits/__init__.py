"""Circuits: whether to call a service at all, decided for a whole fleet."""

from prefect_resilience.circuits.breaker import CircuitBreaker
from prefect_resilience.circuits.fleet import get_circuit, get_circuits, reset_all_circuits
from prefect_resilience.circuits.listeners import (
    add_store_listener,
    add_transition_listener,
    remove_store_listener,
    remove_transition_listener,
)
from prefect_resilience.circuits.model import CircuitPolicy, CircuitSnapshot, StoreNotice, Transition
from prefect_resilience.circuits.permits import Permit
from prefect_resilience.circuits.registry import flush_all, forget_circuits, set_default_store

__all__ = [
    "CircuitBreaker",
    "CircuitPolicy",
    "CircuitSnapshot",
    "Permit",
    "StoreNotice",
    "Transition",
    "add_store_listener",
    "add_transition_listener",
    "flush_all",
    "forget_circuits",
    "get_circuit",
    "get_circuits",
    "remove_store_listener",
    "remove_transition_listener",
    "reset_all_circuits",
    "set_default_store",
]
