"""Recipes: the parts of a key, kept with the effect. They distinguish two effects with the same key, and find
an effect again if its code was changed between two passes.

A recipe is JSON: {"task": dotted name, "template": the key's template or None, "scope": ..., "names": every
parameter of the function, "args": {parameter: {"type", "typed", "loose", "default"}}, "fields": the same
for each field of the template, "digest": the version of `typed`}. `typed` and `loose` are digests of the
argument, or None if it has no digest: two arguments of different types differ in the first and may agree in
the second (17 and "17"). `default`: the argument equals the parameter's default. Two calls with one template
are compared by its fields alone: the rest of an argument may change.
"""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path, PurePath
from typing import TYPE_CHECKING, Any, NamedTuple, cast

from prefect_resilience.base.naming import is_of_process
from prefect_resilience.errors.exceptions import EffectKeyReused, InDoubt

if TYPE_CHECKING:
    from prefect_resilience.durable.effects.model import Asker, Reused

MOST_PACKAGES = 20


class CodeSource(NamedTuple):
    """Where a task's function is defined: its dotted name, its module, and the file if there is one."""

    name: str = ""
    module: str = ""
    file: str = ""


NOWHERE = CodeSource()


def source_of(fn: Callable[..., Any]) -> CodeSource:
    """Where a function is defined. Its body and the folder of the project do not count."""
    function = inspect.unwrap(fn)
    while isinstance(function, partial):
        function = inspect.unwrap(cast("Callable[..., Any]", function.func))
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    file = getattr(getattr(function, "__code__", None), "co_filename", "")
    module = module_name(getattr(function, "__module__", "") or "", file)
    return CodeSource(f"{module}.{name}" if module else name, module, file)


def task_name(fn: Callable[..., Any]) -> str:
    """The dotted name of a function."""
    return source_of(fn).name


MODULES = {"pathlib._local": "pathlib"}
"""Modules to which one version of Python, here 3.13, gives another name; keys are the same with each."""


def class_name(cls: type[Any]) -> str:
    """The dotted name of a class; the bare name of a builtin."""
    if cls.__module__ == "builtins":
        return cls.__qualname__
    module = MODULES.get(cls.__module__, cls.__module__)
    file = getattr(sys.modules.get(module), "__file__", None) or ""
    return f"{module_name(module, file)}.{cls.__qualname__}"


@lru_cache(maxsize=1_000)
def module_name(module: str, file: str) -> str:
    """The name of a module; for a script or a file that Prefect loaded, the name to import it by."""
    path = PurePath(file)
    by_path = module in ("", path.stem) or is_of_process(module)
    if not by_path:
        return module
    if path.suffix != ".py" or "ipykernel" in file:
        return ""
    parts = [path.stem]
    folder = Path(file).parent
    while (folder / "__init__.py").is_file() and len(parts) < MOST_PACKAGES:
        parts.insert(0, folder.name)
        folder = folder.parent
    return ".".join(parts)


def is_gone(recorded: str, asker: CodeSource) -> bool:
    """Whether the source files no longer define a task; False if that is unknown.

    Nothing is imported; the sources are read. A lambda has no name in them.
    """
    if recorded.endswith("<lambda>"):
        return False
    for module, rest in _splits(recorded):
        file = asker.file if module == asker.module else _file_of(module)
        if file is None:
            continue
        defined = _definitions_in(file)
        return defined is not None and rest not in defined
    return True


def _splits(name: str) -> list[tuple[str, str]]:
    """The ways to split a dotted name into module and rest, the longest module first."""
    head = name.split(".<locals>", 1)[0].split(".")
    return [(".".join(head[:n]), name[len(".".join(head[:n])) + 1 :]) for n in range(len(head) - 1, 0, -1)]


def _file_of(module: str) -> str | None:
    loaded = getattr(sys.modules.get(module), "__file__", None)
    if loaded:
        return loaded
    for candidate in list(sys.modules.values()):
        file = getattr(candidate, "__file__", None)
        if (
            file
            and PurePath(file).stem == module.rpartition(".")[2]
            and module_name(candidate.__name__, file) == module
        ):
            return file
    from importlib.util import find_spec

    top, *rest = module.split(".")
    try:
        spec = find_spec(top)
    except (ImportError, ValueError, AttributeError):
        return None
    if spec is None or not rest:
        return None if spec is None else spec.origin
    # find_spec would import the packages around a module.
    places = (Path(folder, *rest) for folder in spec.submodule_search_locations or ())
    files = (file for place in places for file in (place.with_suffix(".py"), place / "__init__.py"))
    return next((str(file) for file in files if file.is_file()), None)


def _definitions_in(file: str) -> frozenset[str] | None:
    """The qualified names of all functions that a file defines; None if it cannot be read."""
    try:
        path = Path(file)
        return _names_in(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return None


@lru_cache(maxsize=32)
def _names_in(text: str) -> frozenset[str]:
    names: set[str] = set()

    def walk(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                names.add(prefix + child.name)
                walk(child, f"{prefix}{child.name}.<locals>.")
            elif isinstance(child, ast.ClassDef):
                walk(child, f"{prefix}{child.name}.")
            else:
                walk(child, prefix)

    walk(ast.parse(text), "")
    return frozenset(names)


Recipe = dict[str, Any]


def difference(recorded: Recipe, mine: Recipe, names: Iterable[str]) -> str | None:
    """Why an effect with the same key is a different one: "task", "values", or None if it is the same.

    `names`: the names that the task may have had.
    """
    if recorded["task"] != mine["task"] and recorded["task"] not in names:
        return "task"
    before, now = _fields_to_compare(recorded, mine)
    for name, arg in now.items():
        if arg.get("key") and name in before and not _agree(before[name]["typed"], arg["typed"]):
            return "values"
    return None


def _fields_to_compare(recorded: Recipe, mine: Recipe) -> tuple[dict[str, Any], dict[str, Any]]:
    """The fields of the template if both have the same one, else the arguments."""
    fields = recorded.get("fields"), mine.get("fields")
    if fields[0] and fields[1] and recorded["template"] == mine["template"]:
        return fields[0], fields[1]
    return recorded["args"], mine["args"]


def same_call(recorded: Recipe, mine: Recipe) -> bool:
    """Whether a changed function may be making the recorded call: their common fields or parameters agree.

    Types do not count.
    """
    before, now = _fields_to_compare(recorded, mine)
    if now is mine.get("fields"):
        return all(_agree(_loose(before, name), _loose(now, name)) for name in now)
    common = [name for name in mine["names"] if name in recorded["names"]]
    if not common:
        return bool(mine["names"]) == bool(recorded["names"]) or not mine["names"] or not recorded["names"]
    return all(_agree(_loose(before, name), _loose(now, name)) for name in common)


def type_changes(recorded: Recipe, mine: Recipe) -> str:
    """How the types of the arguments differ, for a message: "order was int and is str"; or ""."""
    before, now = _fields_to_compare(recorded, mine)
    pairs = [(name, before.get(name), arg) for name, arg in now.items()]
    changes = [
        f"{name} was {old['type']} and is {new['type']}"
        for name, old, new in pairs
        if old is not None and old["type"] != new["type"]
    ]
    return ", ".join(changes)


@dataclass(frozen=True, slots=True)
class Continues:
    """The call is an effect that is recorded under another key."""

    key: str


@dataclass(frozen=True, slots=True)
class Suspect:
    """An effect of an earlier pass that may be this call, if the code was changed since."""

    key: str
    task: str
    why: str


Earlier = dict[str, Any]
"""The document of an effect that an earlier pass of the batch recorded."""


def compared(
    earlier: Iterable[Earlier], mine: Recipe, was: tuple[str, ...], gone: Callable[[Recipe], bool]
) -> Continues | list[Suspect]:
    """How a call with a key that is new to the ledger relates to the effects of earlier passes.

    `earlier`: the effects that this pass has not requested yet. `was`: earlier names of the task.
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
        why = "was= matches more than one of them"
        return [Suspect(key, ", ".join(was), why) for key in renamed]
    return suspects


def _of_one_task(recorded: Recipe, mine: Recipe) -> bool:
    """Whether both belong to one task, and not to two tasks that one function made with different keys."""
    templates = recorded["template"], mine["template"]
    own_keys = "<locals>" in mine["task"] and None not in templates and templates[0] != templates[1]
    return recorded["scope"] == mine["scope"] and not own_keys


def _what_changed(recorded: Recipe, mine: Recipe) -> str:
    if unsure := [name for name, arg in mine["args"].items() if arg.get("unsure")]:
        return f"calls change {unsure[0]!r}, but no replay does: write a key over what stays the same"
    if recorded["template"] != mine["template"]:
        return f"its key was {recorded['template'] or 'a digest'} and is {mine['template'] or 'a digest'}"
    if (types := type_changes(recorded, mine)) != "":
        return types
    added = [name for name in mine["names"] if name not in recorded["names"]]
    if added:
        return f"the function has a new parameter {added[0]!r}"
    if recorded.get("digest") != mine.get("digest"):
        return "another version of prefect-resilience made its key"
    return "the function's parameters changed"


def _loose(args: dict[str, Any], name: str) -> str | None:
    arg = args.get(name)
    return None if arg is None else arg["loose"]


def _agree(one: str | None, other: str | None) -> bool:
    """Whether two digests agree. An argument without a digest agrees with every argument."""
    return one is None or other is None or one == other


def clash(reused: Reused, asker: Asker, source: CodeSource, key: str, batch_id: str) -> Asker:
    """The asker to continue with if the recorded effect is the same one and its code was changed since.

    Raises EffectKeyReused if it is a different effect, and InDoubt if it may be the same one.
    """
    recorded = reused.recipe
    assert asker.recipe is not None
    if reused.why == "task":
        if not reused.same_pass and is_gone(recorded["task"], source):
            return replace(asker, names=(*asker.names, recorded["task"]))
        raise EffectKeyReused(key, batch_id, f"the task {recorded['task']!r} uses it")
    changed = type_changes(recorded, asker.recipe) or "its template was filled with other values"
    if reused.same_pass or not same_call(recorded, asker.recipe):
        raise EffectKeyReused(key, batch_id, changed)
    if recorded["task"] in asker.names[1:]:
        return replace(asker, recipe=None)
    raise InDoubt(
        key,
        batch_id,
        f"an earlier pass recorded it with other arguments ({changed}); {_mend(recorded['task'])}",
    )


def describe_suspects(found: list[Suspect], batch_id: str) -> str:
    """Why a call with a new key may be one that an earlier pass made."""
    first = found[0]
    more = "" if len(found) == 1 else f" and {len(found) - 1} more"
    return (
        f"an earlier pass recorded {first.key!r}{more} by the task {first.task!r}, which this pass has not "
        f"requested: {first.why}; {_mend(first.task)}, or settle the recorded effect: "
        f"`prefect-resilience batches settle {batch_id} {first.key} done`"
    )


def _mend(task: str) -> str:
    return f'if it is the same effect, write Effect(was="{task}")'
