"""Docstrings as this package writes them, as markdown: a griffe extension for the reference pages.

Lines such as `name: what it is`, with further lines indented below, become a list; `Example:` with its
indented block becomes code; `Args:` and `Attributes:` become headings of such lists.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from textwrap import dedent
from typing import Any

import griffe

ENTRY = re.compile(r"^\*{0,2}`?([A-Za-z_][\w, .`]*?)`?: (\S.*)$")
SECTIONS = {"Args:": "Parameters", "Attributes:": "Attributes", "Returns:": "Returns", "Raises:": "Raises"}


class HouseStyle(griffe.Extension):
    """Rewrites every docstring when it has been read."""

    def on_object(self, *, obj: griffe.Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)


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
