"""The circuits of this process: one `Circuit` per store and name, and where circuits live by default."""

from __future__ import annotations

import atexit
import os
import threading
import weakref
from collections import OrderedDict
from collections.abc import Callable

from prefect_resilience.base import places
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.guards.circuits.circuit import Circuit
from prefect_resilience.guards.circuits.link import StoreLink
from prefect_resilience.guards.circuits.model import CircuitPolicy
from prefect_resilience.stores import Store, parse_url

LINKS_KEPT = 64
DEFAULT = "default"
APART = " by "
"""Separates store and policy in the key of a circuit with an operator's policy."""

StoreReference = Store | str | None
"""What `store=` may be: None for the configured store, a URL, or a store that was opened already."""


_default_store_url: Callable[[], str] | None = None
"""Where circuits live that were given no store; None: where the settings say."""

# Circuits are held by the breakers that use them: a breaker that was dropped frees its name.
_circuits: weakref.WeakValueDictionary[tuple[str, str], Circuit] = weakref.WeakValueDictionary()
_links: OrderedDict[str, StoreLink] = OrderedDict()
_links_of_stores: weakref.WeakValueDictionary[int, StoreLink] = weakref.WeakValueDictionary()
_lock = threading.RLock()
_leaving = False


def set_default_store(url: Callable[[], str] | str | None) -> None:
    """Let circuits without a store of their own live under `url`, or what `url()` returns when first needed.

    None: the settings decide again. Breakers that are in use look for the new store at their next call.
    """
    global _default_store_url
    if isinstance(url, str):
        fixed = parse_url(url).canonical
        _default_store_url = lambda: fixed  # noqa: E731
    else:
        _default_store_url = url
    with _lock:
        _links.pop(DEFAULT, None)
        for (place, _), circuit in list(_circuits.items()):
            if place.partition(APART)[0] == DEFAULT:
                circuit.retire()
                _circuits.pop((place, circuit.name), None)


def link_to(store: StoreReference) -> StoreLink:
    """The link to a store; nothing is opened yet. ConfigurationError for a URL that means none."""
    with _lock:
        if store is None:
            return _known_link(DEFAULT, lambda: StoreLink(lambda: (_default_store_url or places.circuits)()))
        if isinstance(store, str):
            for link in _links_of_stores.values():
                if link.url == store:
                    return link
            url = parse_url(store).canonical
            return _known_link(url, lambda: StoreLink(url))
        if not isinstance(store, Store):  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(
                f'store={store!r} is no store: write a URL as in "sqlite:///circuits.db", or leave it out'
            )
        known = _links.get(store.url)
        if known is not None and known.holds(store):
            return known
        link = _links_of_stores.get(id(store))
        if link is None:
            link = _links_of_stores[id(store)] = StoreLink(store.url, store)
        return link


def _known_link(place: str, make: Callable[[], StoreLink]) -> StoreLink:
    link = _links.get(place)
    if link is None:
        link = _links[place] = make()
        while len(_links) > LINKS_KEPT:
            _links.popitem(last=False)
    _links.move_to_end(place)
    return link


def declare(name: str, policy: CircuitPolicy, store: StoreReference, apart: bool = False) -> Circuit:
    """The circuit of this name in this store, made when it is new.

    `apart`: a separate local circuit for an operator's policy; it shares only the stored document. Without
    it, raises ConfigurationError when a breaker that is still in use declared another policy for this name.
    """
    global _leaving
    link = link_to(store)
    place = _place_of(store, link) + (f"{APART}{policy!r}" if apart else "")
    with _lock:
        circuit = _circuits.get((place, name))
        if circuit is None:
            circuit = _circuits[place, name] = Circuit(name, policy, link)
        if not _leaving:
            _leaving = True
            atexit.register(flush_all)
    if circuit.policy != policy:
        raise ConfigurationError(_difference(name, circuit.policy, policy))
    return circuit


def circuits_used() -> bool:
    """Whether this process has circuits."""
    return bool(_circuits)


def declared(name: str, store: StoreReference) -> Circuit | None:
    """The circuit of this name that a breaker of this process uses, if any."""
    link = link_to(store)
    return _circuits.get((_place_of(store, link), name))


def _place_of(store: StoreReference, link: StoreLink) -> str:
    # The id of a link is unique while the link lives; the caller and the circuit hold it.
    return DEFAULT if store is None else f"{link.url}#{id(link)}"


def _difference(name: str, known: CircuitPolicy, policy: CircuitPolicy) -> str:
    before, now = known.model_dump(), policy.model_dump()
    field = next(field for field in before if before[field] != now[field])
    return (
        f"circuit {name!r} has been declared with {field}={before[field]!r} and cannot have "
        f"{field}={now[field]!r} as well: reuse the first CircuitBreaker, choose another name, "
        "or call prefect_resilience.guards.circuits.forget_circuits() to begin anew"
    )


def flush_all() -> None:
    """Merge what every circuit of this process has counted; at the end of the process, too. Never raises."""
    for circuit in list(_circuits.values()):
        circuit.finish()


def forget_circuits() -> None:
    """Forget every circuit that this process declared; for notebooks and tests. Stores keep theirs.

    Breakers that are still in use go on, declare themselves again at their next call, and find out again
    where circuits live by default.
    """
    with _lock:
        for circuit in list(_circuits.values()):
            circuit.retire()
        _circuits.clear()
        _links.clear()
        _links_of_stores.clear()


def _after_fork() -> None:
    global _lock
    _lock = threading.RLock()
    for link in [*_links.values(), *_links_of_stores.values()]:
        link.after_fork()
    for circuit in list(_circuits.values()):
        circuit.after_fork()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
