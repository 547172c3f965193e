"""The reference pages as this package writes them: a griffe extension.

In docstrings, lines such as `name: what it is`, with further lines indented below, become a list; `Example:`
with its indented block becomes code; `Args:` and `Attributes:` become headings of such lists. A function that
takes `**options` shows our options by name, with types and defaults; Prefect's own follow as `**prefect`.
"""

from __future__ import annotations

import inspect
import re
from collections.abc import Callable, Iterator
from functools import reduce
from importlib import import_module
from textwrap import dedent
from typing import Any

import griffe
from prefect import Flow, Task, flow, task

ENTRY = re.compile(r"^\*{0,2}`?([A-Za-z_][\w, .`]*?)`?: (\S.*)$")
SECTIONS = {"Args:": "Parameters", "Attributes:": "Attributes", "Returns:": "Returns", "Raises:": "Raises"}


class HouseStyle(griffe.Extension):
    """Rewrites every docstring when it has been read."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)

    def on_function(self, *, func: griffe.Function, **_: Any) -> None:
        options = [parameter for parameter in func.parameters if parameter.name == "options"]
        signature = getattr(_at_runtime(func) if options else None, "__signature__", None)
        if signature is not None:
            before = [parameter for parameter in func.parameters if parameter not in options]
            func.parameters = griffe.Parameters(*before, *options_of(signature))
            func.overloads = None


PREFECTS = {name for made in (task, flow, Task, Flow) for name in inspect.signature(made).parameters} | {
    name for kind in (Task, Flow) for name in inspect.signature(kind.with_options).parameters
}


def options_of(signature: inspect.Signature) -> Iterator[griffe.Parameter]:
    """Our options in a signature that `base.naming.shows` made, and one parameter for all of Prefect's."""
    named = {
        option.name: option for option in signature.parameters.values() if option.kind is option.KEYWORD_ONLY
    }
    theirs = PREFECTS if "log_prints" in named else set[str]()
    for name, option in named.items():
        if name not in theirs:
            annotation = re.sub(r"\w+\.", "", inspect.formatannotation(option.annotation).strip("'"))
            kind = griffe.ParameterKind.keyword_only
            yield griffe.Parameter(name, annotation=annotation, kind=kind, default=repr(option.default))
    if theirs:
        yield griffe.Parameter("prefect", kind=griffe.ParameterKind.var_keyword)


def _at_runtime(func: griffe.Function) -> Callable[..., Any] | None:
    module = func.module.path
    names = func.path.removeprefix(f"{module}.").split(".")
    found: Any = reduce(lambda place, name: getattr(place, name, None), names, import_module(module))
    return inspect.unwrap(found) if callable(found) else None


def as_markdown(text: str) -> str:
    """A docstring with its lists and examples as markdown has them."""
    return "\n\n".join(part for block in _blocks(text) for part in _as_markdown(block))


def _blocks(text: str) -> Iterator[list[str]]:
    """Paragraphs; one that is followed by indented ones keeps them, blank lines and all."""
    block: list[str] = []
    lines = text.strip("\n").splitlines()
    for number, line in enumerate(lines):
        if line.strip():
            block.append(line)
        elif block:
            following = next((later for later in lines[number:] if later.strip()), "")
            if block[0].startswith("    ") and following.startswith("    "):
                block.append("")
                continue
            yield block
            block = []
    if block:
        yield block


def _as_markdown(block: list[str]) -> Iterator[str]:
    head = block[0].strip()
    if block[0].startswith("    "):
        yield _fenced(block)
    elif head in ("Example:", "Examples:"):
        yield from _fenced_if_any(block[1:])
    elif head in SECTIONS:
        yield f"**{SECTIONS[head]}**"
        yield from _as_markdown(dedent("\n".join(block[1:])).splitlines())
    elif (items := _items(block)) is not None:
        yield "\n".join(items)
    else:
        indented = next((n for n, line in enumerate(block) if line.startswith("    ")), len(block))
        yield "\n".join(block[:indented])
        yield from _fenced_if_any(block[indented:])


def _items(block: list[str]) -> list[str] | None:
    """The list that these lines are, or None."""
    items: list[str] = []
    for line in block:
        if line.startswith(("    ", "\t")):
            if not items:
                return None
            items[-1] += f" {line.strip()}"
            continue
        found = ENTRY.match(line)
        if found is None or len(found[1].split()) > 4 or "." in found[1].rstrip("."):
            return None
        names = ", ".join(f"`{name.strip(' `')}`" for name in found[1].split(","))
        items.append(f"- {names}: {found[2]}")
    return items


def _fenced_if_any(lines: list[str]) -> Iterator[str]:
    if lines:
        yield _fenced(lines)


def _fenced(lines: list[str]) -> str:
    code = dedent("\n".join(lines))
    language = "pycon" if code.lstrip().startswith(">>>") else "python"
    return f"```{language}\n{code}\n```"
