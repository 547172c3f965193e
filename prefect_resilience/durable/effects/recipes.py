"""What a key was made of, kept beside the effect: tells two effects with one key apart, and one effect whose
code was changed between two passes.

A recipe is JSON: {"task": dotted name, "template": the key's template or None, "scope": ..., "names": every
parameter of the function, "args": {parameter: {"type", "typed", "loose", "default"}}}. `typed` and `loose`
are digests of the argument: two arguments of different types differ in the first and may agree in the second
(17 and "17"). None stands for what has no digest. `default`: the argument equals the parameter's default.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

Recipe = dict[str, Any]


def difference(recorded: Recipe, mine: Recipe, names: Iterable[str]) -> str | None:
    """Why an effect that bears the same key is another one: "task", "values", or None when it is the same.

    `names` are those that the task may have had.
    """
    if recorded["task"] != mine["task"] and recorded["task"] not in names:
        return "task"
    for name, arg in mine["args"].items():
        if not arg.get("key"):
            continue
        other = recorded["args"].get(name)
        if other is not None and not _agree(other["typed"], arg["typed"]):
            return "values"
    return None


def same_call(recorded: Recipe, mine: Recipe) -> bool:
    """Whether a changed function may be making the call that was recorded: all that both have agrees.

    Types do not count. Functions that have no parameter in common may be each other's.
    """
    common = [name for name in mine["names"] if name in recorded["names"]]
    if not common:
        return bool(mine["names"]) == bool(recorded["names"]) or not mine["names"] or not recorded["names"]
    return all(_agree(_loose(recorded, name), _loose(mine, name)) for name in common)


def changed_types(recorded: Recipe, mine: Recipe) -> str:
    """How the arguments differ, for a message: "order was int and is str"; empty where they do not."""
    pairs = [(name, recorded["args"].get(name), arg) for name, arg in mine["args"].items()]
    said = [
        f"{name} was {old['type']} and is {new['type']}"
        for name, old, new in pairs
        if old is not None and old["type"] != new["type"]
    ]
    return ", ".join(said)


@dataclass(frozen=True, slots=True)
class Continues:
    """The call goes on with an effect that is recorded under another key."""

    key: str


@dataclass(frozen=True, slots=True)
class Suspect:
    """An effect of an earlier pass that this call may be, under code that was changed since."""

    key: str
    task: str
    why: str


Earlier = dict[str, Any]
"""The document of an effect that an earlier pass of the batch recorded."""


def compared(
    earlier: Iterable[Earlier], mine: Recipe, was: tuple[str, ...], gone: Callable[[Recipe], bool]
) -> Continues | list[Suspect]:
    """What a call whose key the ledger does not know has to do with what earlier passes did.

    `earlier`: the effects that this pass has not asked for so far. `was`: names that the task had before.
    `gone`: whether the task of a recipe is no longer in the code.
    """
    suspects: list[Suspect] = []
    renamed: list[str] = []
    for document in earlier:
        recorded: Recipe = document["recipe"]
        if recorded["task"] in was:
            if same_call(recorded, mine):
                renamed.append(document["key"])
        elif recorded["task"] == mine["task"]:
            if _of_one_task(recorded, mine) and same_call(recorded, mine):
                suspects.append(Suspect(document["key"], recorded["task"], _what_changed(recorded, mine)))
        elif gone(recorded):
            suspects.append(Suspect(document["key"], recorded["task"], "its task is no longer in the code"))
    if len(renamed) == 1:
        return Continues(renamed[0])
    if renamed:
        why = "was= could mean any of them"
        return [Suspect(key, ", ".join(was), why) for key in renamed]
    return suspects


def _of_one_task(recorded: Recipe, mine: Recipe) -> bool:
    """Whether both are of one task, and not of two that a function made, each with a key of its own."""
    templates = recorded["template"], mine["template"]
    own_keys = "<locals>" in mine["task"] and None not in templates and templates[0] != templates[1]
    return recorded["scope"] == mine["scope"] and not own_keys


def _what_changed(recorded: Recipe, mine: Recipe) -> str:
    if recorded["template"] != mine["template"]:
        return f"its key was {recorded['template'] or 'a digest'} and is {mine['template'] or 'a digest'}"
    if (types := changed_types(recorded, mine)) != "":
        return types
    added = [name for name in mine["names"] if name not in recorded["names"]]
    if added:
        return f"the function has a new parameter {added[0]!r}"
    return "the function's parameters changed"


def _loose(recipe: Recipe, name: str) -> str | None:
    arg = recipe["args"].get(name)
    return None if arg is None else arg["loose"]


def _agree(one: str | None, other: str | None) -> bool:
    """What has no digest may be anything."""
    return one is None or other is None or one == other
