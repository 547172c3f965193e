"""The public API as text, and what a change of it breaks.

`public_api.txt` says, module by module, in the words of a stub file, every public name with its parameters,
fields and defaults. A test compares it with the code. After a change:

    python -m tests.project.api --write

which refuses to write down a breaking change that CHANGELOG.md does not name under "Unreleased".
"""

from __future__ import annotations

import argparse
import importlib
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import griffe
from pydantic import BaseModel

ROOT = Path(__file__).parents[2]
SNAPSHOT = Path(__file__).with_name("public_api.txt")
CHANGELOG = ROOT / "CHANGELOG.md"
PACKAGE = "prefect_resilience"
MODULES = (PACKAGE, f"{PACKAGE}.dead_letters", f"{PACKAGE}.operations", f"{PACKAGE}.testing")
SPOKEN = {
    "__init__",
    "__call__",
    "__enter__",
    "__exit__",
    "__aenter__",
    "__aexit__",
    "__getitem__",
    "__iter__",
}
HEAD = "# module "


def current() -> str:
    """The API that the code has now."""
    package = griffe.load(PACKAGE, search_paths=[ROOT], resolve_aliases=True, resolve_external=False)
    parts: list[str] = []
    for module in MODULES:
        found: Any = package if module == PACKAGE else package[module.removeprefix(f"{PACKAGE}.")]
        parts += [f"{HEAD}{module}", *_module(module, found)]
    return "\n".join(parts) + "\n"


def _module(name: str, module: griffe.Module) -> Iterator[str]:
    running = importlib.import_module(name)
    for public in sorted(running.__all__):
        found: Any = module.members[public]
        found = found.final_target if found.is_alias else found
        if found.is_module:
            yield f"{public}: module"
        elif found.is_class:
            yield from _class(public, found, getattr(running, public))
        elif found.is_function:
            yield _function(found, public)
        else:
            yield _attribute(found, public)


def _class(name: str, found: griffe.Class, running: type) -> Iterator[str]:
    bases = ", ".join(str(base) for base in found.bases)
    yield f"class {name}({bases}):" if bases else f"class {name}:"
    members = {**_inherited(found), **found.members}
    fields = set(running.model_fields) if issubclass(running, BaseModel) else set[str]()
    if fields:
        yield f"    {_maker(members, running)}"
    lines = [
        _member(member, key)
        for key, member in sorted(members.items())
        if key not in fields
        and not key.startswith("model_")
        and (not key.startswith("_") or (key in SPOKEN and not fields))
    ]
    yield from [f"    {line}" for text in lines if text for line in text.split("\n")] or ["    ..."]
    yield ""


def _inherited(found: griffe.Class) -> dict[str, Any]:
    """What comes from bases of ours, which may be private; Prefect's and pydantic's own is theirs to keep."""
    return {
        key: member.final_target
        for key, member in found.inherited_members.items()
        if member.target_path.startswith(PACKAGE)
    }


def _maker(members: dict[str, Any], model: type[BaseModel]) -> str:
    """A model's fields are the keywords of its making: a field that becomes required breaks who makes one."""
    words: list[str] = []
    for name, field in model.model_fields.items():
        member = members.get(name)
        annotation = f": {member.annotation}" if member is not None and member.annotation is not None else ""
        default = "" if field.is_required() else f" = {_default(field)}"
        words.append(f"{name}{annotation}{default}")
    return f"def __init__(self, *, {', '.join(words)}): ..."


def _default(field: Any) -> str:
    if field.default_factory is not None:
        factory: Any = field.default_factory
        return f"{factory.__qualname__}()" if "<" not in factory.__qualname__ else "..."
    return _plain(field.default)


def _plain(value: Any) -> str:
    """A default as the code of it, as far as it has one; an address in memory is none."""
    text = repr(value.value) if hasattr(value, "value") else repr(value)
    return text if re.fullmatch(r"[\w.'\"\[\](){}, :+*-]*", text) else "..."


def _member(member: Any, name: str) -> str:
    if member.is_function:
        return _function(member, name)
    if member.is_attribute:
        return _attribute(member, name)
    return ""


def _attribute(found: Any, name: str) -> str:
    if "property" in found.labels:
        return f"@property\ndef {name}(self) -> {found.annotation}: ..."
    annotation = f": {found.annotation}" if found.annotation is not None else ""
    # what __init__ gives an attribute is no default of the class
    shown = found.value is not None and "instance-attribute" not in found.labels
    value = f" = {found.value}" if shown and "\n" not in str(found.value) else ""
    return f"{name}{annotation or ('' if value else ': Any')}{value}"


def _function(found: griffe.Function, name: str) -> str:
    marks = "".join(f"@{label}\n" for label in ("staticmethod", "classmethod") if label in found.labels)
    word = "async def" if "async" in found.labels else "def"
    answer = f" -> {found.returns}" if found.returns is not None else ""
    return f"{marks}{word} {name}({_parameters(found)}){answer}: ..."


def _parameters(found: griffe.Function) -> str:
    """As they are written, with the marks that part the kinds."""
    kinds = griffe.ParameterKind
    stars = {kinds.var_positional: "*", kinds.var_keyword: "**"}
    words: list[str] = []
    marked = False
    for parameter in found.parameters:
        star = stars.get(parameter.kind, "") if parameter.kind is not None else ""
        marked = marked or star == "*"
        if parameter.kind is kinds.keyword_only and not marked:
            words.append("*")
            marked = True
        annotation = f": {parameter.annotation}" if parameter.annotation is not None else ""
        default = f" = {parameter.default}" if parameter.default is not None and not star else ""
        words.append(f"{star}{parameter.name}{annotation}{default}")
    return ", ".join(words)


def modules_of(text: str) -> dict[str, griffe.Module]:
    """A snapshot, read back."""
    parts = text.split(HEAD)[1:]
    split = [part.partition("\n") for part in parts]
    return {name: griffe.visit(name, filepath=SNAPSHOT, code=code) for name, _, code in split}


def breaking(old: str, new: str) -> dict[str, str]:
    """By public name ("Retry.decide(attempt)"): what a caller of the old API would trip over."""
    before, after = modules_of(old), modules_of(new)
    found = dict.fromkeys(before.keys() - after.keys(), "the module is gone")
    for module in before.keys() & after.keys():
        for breakage in griffe.find_breaking_changes(before[module], after[module]):
            told = breakage.explain(griffe.ExplanationStyle.ONE_LINE)
            found[breakage.obj.path.removeprefix(f"{module}.").removeprefix(f"{PACKAGE}.")] = re.sub(
                r"\x1b\[\d*m", "", told
            )
    return found


def unnamed(breakages: dict[str, str]) -> dict[str, str]:
    """Those that CHANGELOG.md does not name, in backticks, under "Unreleased"."""
    unreleased = re.split(r"^## ", CHANGELOG.read_text(), flags=re.M)[1]
    assert unreleased.startswith("[Unreleased]")
    named = set(re.findall(r"`([\w.]+)", unreleased))
    return {name: told for name, told in breakages.items() if name not in named}


def main() -> None:
    words = argparse.ArgumentParser(description="The public API, and what a change of it breaks.")
    words.add_argument("--write", action="store_true", help="write the API down as it is now")
    asked = words.parse_args()
    new = current()
    if not asked.write:
        print(new, end="")
        return
    if SNAPSHOT.exists() and (broken := unnamed(breaking(SNAPSHOT.read_text(), new))):
        lines = "\n".join(f"  {name}: {told}" for name, told in broken.items())
        raise SystemExit(f"name these under Unreleased in CHANGELOG.md first, as `name`:\n{lines}")
    SNAPSHOT.write_text(new)


if __name__ == "__main__":
    main()
