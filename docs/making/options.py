"""Tables of options, written into the pages from the code: names, defaults and descriptions.

python -m docs.making.options            say which pages are out of date; exit code 1 if there are any
python -m docs.making.options --write    bring them up to date

A page has the table between `<!-- options: Retry -->` and `<!-- /options -->`. The name is that of a public
class or function. A policy's table has its fields; any other table has the parameters of the signature, with
the descriptions that the docstring gives for them, as griffe reads it.
"""

from __future__ import annotations

import importlib
import inspect
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import griffe
from pydantic import BaseModel

import prefect_resilience
from docs.making.tables import code, default, table

DOCS = Path(__file__).parents[1]
PLACE = re.compile(r"(<!-- options: ([\w.]+) -->\n).*?(<!-- /options -->)", re.DOTALL)
ENTRY = re.compile(r"^([a-z_]\w*(?:, [a-z_]\w*)*): (\S.*)$")
"""A line of a docstring that describes parameters; the lines indented below it belong to it."""


def options_of(name: str) -> str:
    """The table of the options of a public class or function."""
    found = _public(name)
    is_policy = isinstance(found, type) and issubclass(found, BaseModel)
    rows = [*(_of_fields(found) if is_policy else _of_signature(found))]
    undescribed = [option for option, _, about in rows if not about]
    if undescribed or not rows:
        raise SystemExit(f"{name} describes {'nothing' if not rows else f'no {undescribed}'}")
    return table(("option", "default", "description"), rows)


def _public(name: str) -> Any:
    module, _, short = name.rpartition(".")
    there = importlib.import_module(f"prefect_resilience.{module}") if module else prefect_resilience
    return getattr(there, short)


def _of_fields(policy: type[BaseModel]) -> Iterator[tuple[str, str, str]]:
    about = _entries(inspect.cleandoc(policy.__doc__ or ""))
    for name, field in policy.model_fields.items():
        if field.repr:  # else it is not the user's
            yield code(name), default(field), _cell(field.description or about.get(name, ""))


def _of_signature(found: Any) -> Iterator[tuple[str, str, str]]:
    docstring = _package()[f"{found.__module__.partition('.')[2]}.{found.__qualname__}"].docstring
    parameters = inspect.signature(found).parameters
    for name, about in _entries(docstring.value if docstring else "").items():
        if name in parameters:
            yield code(name), _shown(parameters[name].default), _cell(about)


@cache
def _package() -> Any:
    return griffe.load("prefect_resilience", search_paths=[str(DOCS.parent)])


def _entries(docstring: str) -> dict[str, str]:
    """The description of each parameter in a docstring."""
    found: dict[str, str] = {}
    names: list[str] = []
    for line in docstring.splitlines():
        if entry := ENTRY.match(line):
            names = entry[1].split(", ")
            found.update(dict.fromkeys(names, entry[2]))
        elif line.startswith("    ") and names:
            found.update({name: f"{found[name]} {line.strip()}" for name in names})
        else:
            names = []
    return found


def _shown(value: Any) -> str:
    if value is inspect.Parameter.empty:
        return "required"
    if isinstance(value, bool | int | float | str | None):
        return "none" if value in (None, "") else code(value)
    return code(f"{type(value).__name__}()") if isinstance(value, BaseModel) else ""


def _cell(text: str) -> str:
    told = " ".join(text.split()).replace("|", "\\|")
    return told[:1].upper() + told[1:]


def written(page: str) -> str:
    """The page with each of its tables as the code has it now."""
    return PLACE.sub(lambda found: f"{found[1]}\n{options_of(found[2])}\n\n{found[3]}", page)


def stale(*, write: bool = False) -> list[str]:
    """The pages whose tables are not those of the code; with `write` they are brought up to date."""
    found: list[str] = []
    for path in sorted(DOCS.rglob("*.md")):
        now = path.read_text(encoding="utf-8")
        new = written(now)
        if new != now:
            found.append(str(path.relative_to(DOCS.parent)))
            if write:
                path.write_text(new, encoding="utf-8")
    return found


def main() -> None:
    write = "--write" in sys.argv[1:]
    if (found := stale(write=write)) and not write:
        raise SystemExit(f"out of date: {', '.join(found)}: python -m docs.making.options --write")


if __name__ == "__main__":
    main()
