"""What earlier passes of a batch left: the effects that a call may be, under code that was changed since."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator
from typing import Any

from prefect_resilience.durable.effects.model import EffectDocument
from prefect_resilience.durable.effects.names import CodeSource, is_gone
from prefect_resilience.durable.effects.passes import Pass, same_pass
from prefect_resilience.durable.effects.recipes import Continues, Recipe, Suspect, compared

Call = tuple[str, tuple[str, ...], tuple[Any, ...]]
"""A task, its parameters, and what they loosely were."""


class EarlierEffects:
    """The external effects of one flow that earlier passes did or began, less those that this pass asked for.

    Indexed, since a recovery may ask for thousands that they do not have.
    """

    def __init__(self, effects: Iterable[EffectDocument] = ()) -> None:
        self._by_key: dict[str, EffectDocument] = {}
        self._by_call: dict[Call, set[str]] = {}
        self._by_task: dict[str, set[str]] = {}
        self._gone: dict[str, bool] = {}
        self._lock = threading.Lock()
        for effect in effects:
            self._by_key[effect["key"]] = effect
            self._by_call.setdefault(_call_of(effect["recipe"]), set()).add(effect["key"])
            self._by_task.setdefault(effect["recipe"]["task"], set()).add(effect["key"])

    def __bool__(self) -> bool:
        return bool(self._by_key)

    def __contains__(self, key: str) -> bool:
        return key in self._by_key

    def asked(self, key: str) -> None:
        """This pass has asked for that one."""
        with self._lock:
            effect = self._by_key.pop(key, None)
            if effect is not None:
                self._by_call[_call_of(effect["recipe"])].discard(key)
                self._by_task[effect["recipe"]["task"]].discard(key)

    def compare(self, recipe: Recipe, was: tuple[str, ...], source: CodeSource) -> Continues | list[Suspect]:
        """What a call, whose key the ledger does not know, has to do with them (see `recipes.compared`)."""
        with self._lock:
            keys = self._candidates(recipe, was, source)
            found = [self._by_key[key] for key in keys]
        return compared(found, recipe, was, lambda recorded: self._is_gone(recorded["task"], source))

    def _candidates(self, recipe: Recipe, was: tuple[str, ...], source: CodeSource) -> Iterator[str]:
        for task, keys in self._by_task.items():
            if task != recipe["task"]:
                yield from keys if keys and (task in was or self._is_gone(task, source)) else ()
                continue
            # Where the parameters are the same ones, only the same arguments can be the same call.
            mine = _call_of(recipe)
            same = self._by_call.get(mine, set[str]())
            yield from same
            for call, others in self._by_call.items():
                open_to_any = call[1] != mine[1] or None in call[2] or None in mine[2]
                if call[0] == task and open_to_any:
                    yield from others - same

    def _is_gone(self, task: str, source: CodeSource) -> bool:
        if task not in self._gone:
            self._gone[task] = is_gone(task, source)
        return self._gone[task]


def earlier_effects(
    effects: Iterable[EffectDocument], passed: Pass, flow: tuple[str | None, str | None]
) -> EarlierEffects:
    """Those of the same flow, by its run's id or by its name: the code of another flow may not be here."""
    run, name = flow
    return EarlierEffects(
        effect
        for effect in effects
        if effect.get("recipe") is not None
        and effect["kind"] == "external"
        and effect["state"] in ("done", "unknown", "intended")
        and not effect.get("acknowledged")
        and (effect.get("flow_run_id") == run or effect.get("flow") == name)
        and not same_pass((effect.get("asked") or {"pass": ()})["pass"], passed)
    )


def _call_of(recipe: Recipe) -> Call:
    names = tuple(recipe["names"])
    args = recipe["args"]
    return recipe["task"], names, tuple(args[name]["loose"] if name in args else None for name in names)
