"""The second names of effects whose functions change their arguments.

The key of an effect is taken before its function first runs. If the arguments have another key after the
call, that key is an alias of the effect; if they have changed otherwise, its own key stands for an alias. A
later pass in the same process asks for the alias, because it passes the changed arguments. An alias has a
document of its own: {"alias": key after the call, "keys": the effects that it may name, "names": the changed
arguments, "pass": the pass that recorded it}. It is written before the outcome of the call, so that no effect
is recorded as done while its alias is not.

A pass that makes its arguments anew replays the effect, which does not change them. So other effects of that
pass may get them in another state, and thus with another key, than they did before.
"""

from __future__ import annotations

import gc
from collections import OrderedDict
from collections.abc import Iterable, Mapping
from enum import Enum
from types import FunctionType
from typing import Any, NamedTuple

from prefect_resilience.base.plain import is_fixed
from prefect_resilience.base.process import per_process
from prefect_resilience.durable.effects.ledger import Ledger, place_of
from prefect_resilience.durable.effects.model import Asker, Pass, same_pass
from prefect_resilience.durable.effects.recipes import Recipe
from prefect_resilience.errors.exceptions import EffectKeyReused
from prefect_resilience.stores.base import Store, change, scan_all

ALIASES = "effects-alias/"
MOST_BATCHES = 1_000
MOST_UNSURE = 10_000


class KnownAliases:
    """The aliases of one batch that this process knows: those recorded here, and those in the store when each
    pass began."""

    def __init__(self, store: Store, batch_id: str) -> None:
        self.store = store
        self.batch_id = batch_id
        self.keys: dict[str, list[str]] = {}
        self.changes: dict[str, set[str]] = {}
        """The arguments that the call of an effect changes, by the effect's key."""
        self.unsure: dict[int, Any] = {}
        """The objects, by their ids, that an earlier pass may have had in another state."""
        self._read_for: set[Pass] = set()

    def read(self, passed: Pass) -> None:
        """Read the aliases of earlier passes. May raise StoreUnavailable."""
        if passed not in self._read_for:
            for _, document in scan_all(self.store, place_of(self.batch_id, prefix=ALIASES)):
                self.add(**{name: document.value[name] for name in ("alias", "keys", "names")})
            self._read_for.add(passed)

    def add(self, alias: str, keys: list[str], names: list[str]) -> None:
        earlier = self.keys.get(alias, [])
        self.keys[alias] = [*earlier, *(key for key in keys if key not in earlier)]
        for key in keys:
            self.changes.setdefault(key, set()).update(names)

    def called(self, key: str, given: Mapping[str, Any]) -> None:
        """An effect was called or replayed: its arguments may be in another state than in an earlier pass."""
        if key in self.changes:
            self.unsure |= _parts(given[name] for name in self.changes[key] & given.keys())
            while len(self.unsure) > MOST_UNSURE:
                self.unsure.pop(next(iter(self.unsure)))

    def blur(self, recipe: Recipe, given: Mapping[str, Any]) -> Recipe:
        """The recipe in which an argument of an unsure state agrees with every argument."""
        blurred = {
            name for name, value in given.items() if self.unsure and self.unsure.keys() & _parts([value])
        }
        any_state = {"loose": None, "unsure": True}
        args = {
            name: {**arg, **any_state} if name in blurred else arg for name, arg in recipe["args"].items()
        }
        return {**recipe, "args": args}


def _parts(values: Iterable[Any]) -> dict[int, Any]:
    """The objects in some values that can change, by their ids."""
    parts: dict[int, Any] = {}
    waiting = [*values]
    while waiting and len(parts) < MOST_UNSURE:
        value = waiting.pop()
        if id(value) not in parts and not (is_fixed(value) or isinstance(value, type | Enum | FunctionType)):
            parts[id(value)] = value
            waiting += gc.get_referents(value)
    return parts


class _KnownBatches:
    def __init__(self) -> None:
        self.batches: OrderedDict[tuple[int, str], KnownAliases] = OrderedDict()


_known = per_process(_KnownBatches)


def aliases_of(store: Store, batch_id: str, passed: Pass) -> KnownAliases:
    """The aliases of a batch; the store is read once for each pass. May raise StoreUnavailable."""
    key = (id(store), batch_id)
    aliases = _known.batches.get(key)
    if aliases is None or aliases.store is not store:
        aliases = _known.batches[key] = KnownAliases(store, batch_id)
        while len(_known.batches) > MOST_BATCHES:
            _known.batches.popitem(last=False)
    aliases.read(passed if any(number > 1 for _, number in passed) else passed[:1])
    return aliases


def record_alias(store: Store, batch_id: str, alias: str, key: str, names: list[str], asker: Asker) -> None:
    """Record that the arguments of an effect have another key after its call. May raise StoreUnavailable."""

    def step(known: dict[str, Any] | None) -> dict[str, Any]:
        if known is not None and key in known["keys"]:
            return known
        keys, more = [*(known or {"keys": []})["keys"], key], [*(known or {"names": []})["names"], *names]
        passed = [list(entry) for entry in asker.passed]
        about = {"batch": batch_id, "alias": alias, "run": asker.run, "pass": passed}
        return {**about, "keys": keys, "names": sorted({*more})}

    change(store, place_of(batch_id, alias, ALIASES), step)


def key_of_alias(store: Store, batch_id: str, alias: str) -> str:
    """The key of the effect that has this alias; the alias itself if it is none, or names several effects."""
    document = store.load(place_of(batch_id, alias, ALIASES))
    keys: list[str] = [] if document is None else document.value["keys"]
    return keys[0] if len(keys) == 1 else alias


def remove_aliases(store: Store, batch_id: str) -> None:
    for place, document in list(scan_all(store, place_of(batch_id, prefix=ALIASES))):
        store.delete(place, document.version)


class NamedEffect(NamedTuple):
    """The effect of an alias: its key, and its recipe if it is in the ledger."""

    key: str
    recipe: dict[str, Any] | None


def follow(ledger: Ledger, batch_id: str, alias: str, keys: list[str], asker: Asker) -> NamedEffect:
    """The effect of an alias, for a later attempt or pass.

    Raises EffectKeyReused if this pass has requested the effect before, if the alias names several effects,
    or if it is an alias of another task. May raise StoreUnavailable.
    """
    effect = ledger.store.load(place_of(batch_id, keys[0]))
    document: dict[str, Any] = {} if effect is None else effect.value
    last, recipe = document.get("asked"), document.get("recipe")
    again = last is not None and last["run"] != asker.run and same_pass(last["pass"], asker.passed)
    if again or len(keys) > 1 or (recipe is not None and recipe["task"] not in asker.names):
        calls = " and ".join(map(repr, keys[:2]))
        raise EffectKeyReused(alias, batch_id, f"the call of {calls} changed its arguments to these")
    return NamedEffect(keys[0], recipe)
