"""The circuits of this process: one `Circuit` per store and name, and the default store of circuits."""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from functools import cache
from typing import Any

from prefect_resilience.base import places
from prefect_resilience.base.process import at_exit, in_forked_child
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.guards.circuits.circuit import Circuit
from prefect_resilience.guards.circuits.link import StoreLink
from prefect_resilience.guards.circuits.model import CircuitPolicy
from prefect_resilience.stores import Store, parse_url
from prefect_resilience.stores.base import scan_all

DEFAULT = "default"
APART = " by "
"""Separates store and policy in the key of a circuit with an operator's policy."""

StoreReference = Store | str | None
"""The values of `store=`: None for the configured store, a URL, or an open store."""


class _Registry:
    """The circuits that this process declared. Breakers hold them: dropping a breaker frees its name."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        # The store of circuits without a `store=`; None: the one in the settings.
        self.default_url: Callable[[], str] | None = None
        self.circuits: weakref.WeakValueDictionary[tuple[str, str], Circuit] = weakref.WeakValueDictionary()
        self.links: dict[str, StoreLink] = {}
        self.links_of_stores: weakref.WeakValueDictionary[int, StoreLink] = weakref.WeakValueDictionary()


_state = _Registry()


def set_default_store(url: Callable[[], str] | str | None) -> None:
    """Keep circuits without a store of their own in the store `url`; a function is called at the first use.

    None: the settings decide again. Breakers in use switch to the new store at their next call.
    """
    fixed = parse_url(url).canonical if isinstance(url, str) else ""
    _state.default_url = (lambda: fixed) if isinstance(url, str) else url
    with _state.lock:
        _state.links.pop(DEFAULT, None)
        for (place, _), circuit in list(_state.circuits.items()):
            if place.partition(APART)[0] == DEFAULT:
                circuit.retire()
                _state.circuits.pop((place, circuit.name), None)


def link_to(store: StoreReference) -> StoreLink:
    """The link to a store, which is not opened yet. Raises ConfigurationError for an invalid URL or value."""
    with _state.lock:
        if store is None:
            return _link_at(DEFAULT, lambda: (_state.default_url or places.circuits)())
        if isinstance(store, str):
            for link in _state.links_of_stores.values():
                if link.url == store:
                    return link
            url = parse_url(store).canonical
            return _link_at(url, url)
        if not isinstance(store, Store):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(
                f'store={store!r} is not a store: write a URL, as in "sqlite:///circuits.db", or leave it out'
            )
        link = _state.links.get(store.url)
        if link is None or link.opened is not store:
            link = _state.links_of_stores.get(id(store)) or StoreLink(store.url, store)
            _state.links_of_stores[id(store)] = link
        return link


def _link_at(place: str, url: str | Callable[[], str]) -> StoreLink:
    return _state.links.get(place) or _state.links.setdefault(place, StoreLink(url))


def read_documents(prefix: str, store: StoreReference) -> tuple[dict[str, Any], float]:
    """The values by their keys, which start with `prefix`, and the store's time. Raises StoreUnavailable."""
    return link_to(store).exchange(
        lambda opened: ({key: document.value for key, document in scan_all(opened, prefix)}, opened.now())
    )


def declare(name: str, policy: CircuitPolicy, store: StoreReference, apart: bool = False) -> Circuit:
    """The circuit of this name in this store, created if it is new.

    `apart`: a separate local circuit for an operator's policy; it shares only the stored document. Without
    it, raises ConfigurationError when a breaker that is still in use declared another policy for this name.
    """
    _flush_at_exit()
    link = link_to(store)
    place = _place_of(store, link) + (f"{APART}{policy!r}" if apart else "")
    with _state.lock:
        circuit = _state.circuits.get((place, name))
        if circuit is None:
            circuit = _state.circuits[place, name] = Circuit(name, policy, link)
    if circuit.policy != policy:
        raise ConfigurationError(_difference(name, circuit.policy, policy))
    return circuit


def circuit_in_use(name: str, store: StoreReference) -> Circuit | None:
    """The circuit of this name if a breaker of this process uses it, else None."""
    link = link_to(store)
    return _state.circuits.get((_place_of(store, link), name))


def _place_of(store: StoreReference, link: StoreLink) -> str:
    # The id of a link is unique while the link lives; the caller and the circuit hold it.
    return DEFAULT if store is None else f"{link.url}#{id(link)}"


def _difference(name: str, known: CircuitPolicy, policy: CircuitPolicy) -> str:
    before, now = known.model_dump(), policy.model_dump()
    field = next(field for field in before if before[field] != now[field])
    return (
        f"circuit {name!r} is already declared with {field}={before[field]!r} and cannot have "
        f"{field}={now[field]!r} as well: reuse the first CircuitBreaker, choose another name, "
        "or call prefect_resilience.guards.circuits.registry.forget_circuits() to start over"
    )


def flush_all() -> None:
    """Merge the counts of every circuit of this process. Also runs at process exit. Never raises."""
    for circuit in list(_state.circuits.values()):
        circuit.finish()


@cache
def _flush_at_exit() -> None:
    at_exit(flush_all)


def forget_circuits() -> None:
    """Forget every circuit that this process declared; for notebooks and tests. Stores keep their documents.

    Breakers that are still in use declare their circuits again at their next call, and look up the default
    store again.
    """
    with _state.lock:
        for circuit in list(_state.circuits.values()):
            circuit.retire()
        _state.circuits.clear()
        _state.links.clear()
        _state.links_of_stores.clear()


@in_forked_child
def _after_fork() -> None:
    _state.lock = threading.RLock()
    circuits = list(_state.circuits.values())
    for link in {*_state.links.values(), *(circuit.link for circuit in circuits)}:
        link.begin()
    for circuit in circuits:
        circuit.begin()
