"""A plan from a file, a text or data: read whole, or refused with every mistake in its place."""

from __future__ import annotations

import json
import math
import os
import re
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn, cast

from prefect_resilience.graphs.plans.model import Asked, CheckedActions, Plan
from prefect_resilience.graphs.plans.reading.data import DEEPEST, Repeated
from prefect_resilience.graphs.plans.reading.mistakes import Mistake, PlanError, quoted, shortened, suggestion
from prefect_resilience.graphs.plans.reading.validate import built
from prefect_resilience.graphs.plans.reading.yaml_text import load_yaml

LONGEST_NUMBER = 1_000
MOST_PARTS = 2_000_000
"""Commas and opening brackets of a text: they bound the memory that its data takes to about 150 MB."""

_PARTS = re.compile(r'"(?:[^"\\]+|\\.)*"?|[\[\]{}]', re.DOTALL)
_COMMENTS = re.compile(r'"(?:[^"\\]+|\\.)*"?|//[^\n]*|/\*.*?(?:\*/|\Z)', re.DOTALL)
_WORDS = re.compile(r'"(?:[^"\\]+|\\.)*"?|-?Infinity|NaN|-?\d[\d.eE+-]*', re.DOTALL)


class _Refused(Exception):
    """A literal that a plan cannot have."""

    def __init__(self, literal: str, says: str) -> None:
        self.literal = literal
        self.says = says
        super().__init__(says)


def load_json(text: str, source: str) -> Any:
    """The data of a JSON text. Raises PlanError with the place of the first mistake."""
    text = without_comments(text)
    count = text.count(",") + text.count("[") + text.count("{")
    if count > MOST_PARTS:
        says = f"has more than {MOST_PARTS:,} commas and brackets: a plan carries little data"
        raise PlanError([Mistake(source, says)], source)
    try:
        return json.loads(
            text,
            object_pairs_hook=_object,
            parse_int=_whole,
            parse_float=_number,
            parse_constant=_constant,
        )
    except json.JSONDecodeError as error:
        says = error.msg[:1].lower() + error.msg[1:]
        _refuse_at(source, text, error.pos, f"is no JSON: {says}{_near(text, error.pos)}")
    except _Refused as error:
        at = next((m.start() for m in _WORDS.finditer(text) if m[0] == error.literal), 0)
        _refuse_at(source, text, at, error.says)
    except RecursionError:
        at = _too_deep(text)
        if at is None:
            says = "cannot be read here: the program is nested too deep itself"
            raise PlanError([Mistake(source, says)], source) from None
        _refuse_at(source, text, at, f"is nested more than {DEEPEST} levels deep: write it flatter")


def without_comments(text: str) -> str:
    """The text with spaces in place of `// ...` and `/* ... */`: every line and column stays where it was."""
    return _COMMENTS.sub(_blank, text) if "/*" in text or "//" in text else text


def _blank(found: re.Match[str]) -> str:
    part = found[0]
    return part if part.startswith('"') else re.sub(r"[^\n]", " ", part)


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) == len(pairs):
        return made
    seen: set[str] = set()
    twice = dict.fromkeys(key for key, _ in pairs if key in seen or seen.add(key))
    repeated = Repeated(made)
    repeated.keys_repeated = tuple(twice)
    return repeated


def _whole(literal: str) -> int:
    if len(literal) > LONGEST_NUMBER:
        raise _Refused(literal, "is a number of too many digits: write it as a text")
    return int(literal)


def _number(literal: str) -> float:
    number = float(literal) if len(literal) <= LONGEST_NUMBER else math.inf
    if not math.isfinite(number):
        raise _Refused(
            literal, f"{shortened(literal, 40)} is larger than a number can be: write it as a text"
        )
    return number


def _constant(literal: str) -> NoReturn:
    raise _Refused(literal, f"{literal} is no JSON: write a number, null, or a text")


def _too_deep(text: str) -> int | None:
    """Where the first bracket is that lies too deep; None if none does."""
    depth = 0
    for found in _PARTS.finditer(text):
        depth += (found[0] in ("[", "{")) - (found[0] in ("]", "}"))
        if depth > DEEPEST:
            return found.start()
    return None


def _near(text: str, position: int) -> str:
    found = text[position : position + 20].split("\n")[0].strip()
    return f", at {shortened(found)!r}" if found else ", at the end" if position >= len(text) - 1 else ""


def _refuse_at(source: str, text: str, position: int, says: str) -> NoReturn:
    line = text.count("\n", 0, position) + 1
    column = position - text.rfind("\n", 0, position)
    raise PlanError([Mistake(f"{source}, line {line}, column {column}", says)], source) from None


LARGEST_FILE = 32_000_000
"""Bytes of a plan's file, and characters of its text."""

SUFFIXES = (".json", ".yaml", ".yml")


def read_plan(
    source: Plan | Mapping[str, Any] | str | Path,
    *,
    actions: CheckedActions | None = None,
    inputs: Mapping[str, Any] | None = None,
    base: str | Path | None = None,
) -> Plan:
    """The plan that `source` is or names: a plan, its data, a file's path, or a text in JSON or YAML.

    A text is a plan's when it begins with `{` or `[` or has several lines, else a path, which may be relative
    to `base`. With `actions` and `inputs` it is also checked that the plan can be run with these.

    Raises `PlanError`, whose `mistakes` are all that is wrong, each in its place.
    """
    asked = Asked(actions, inputs)
    if isinstance(source, Plan):
        wrong = source.check(actions, inputs)
        if wrong:
            raise PlanError(wrong)
        return source
    if isinstance(source, Mapping):
        return built(source, asked)
    if isinstance(source, Path) or (isinstance(cast("Any", source), str) and not is_text(source)):
        return from_file(source, asked, base)
    if isinstance(cast("Any", source), str):
        return from_text(source, asked)
    _refuse("the plan", f"write a plan, its data, a file or a text, not {quoted(source)}")


def is_text(source: str) -> bool:
    """Whether a text is a plan, rather than a path to one."""
    begins = source.lstrip()[:1]
    return begins in ("", "{", "[") or "\n" in source


def from_text(text: str, asked: Asked | None = None, source: str = "the plan") -> Plan:
    """The plan that a text is: JSON if it begins with `{`, `[` or a comment, else YAML. Raises PlanError."""
    return built(_data_of_text(text, source), asked or Asked(), source)


def from_file(path: str | Path, asked: Asked | None = None, base: str | Path | None = None) -> Plan:
    """The plan in a `.json`, `.yaml` or `.yml` file. Raises PlanError."""
    return built(_data_of_file(path, base), asked or Asked(), _called(path))


def written_data(source: str | Path) -> Any:
    """What a text or a file holds, unchecked. Raises PlanError where it holds no data."""
    if isinstance(source, str) and is_text(source):
        return _data_of_text(source, "the plan")
    return _data_of_file(source)


def _data_of_text(text: str, source: str) -> Any:
    if len(text) > LARGEST_FILE:
        _refuse(source, f"{len(text):,} characters are more than the {LARGEST_FILE:,} that a plan may have")
    begins = text.lstrip()[:1]
    if begins == "/":
        begins = without_comments(text).lstrip()[:1]
    if not begins:
        _refuse(source, 'is empty: write {"tasks": [...]}')
    return load_json(text, source) if begins in "{[" else load_yaml(text, source)


def _data_of_file(path: str | Path, base: str | Path | None = None) -> Any:
    place, source = Path(base or "", path), _called(path)
    if place.suffix.lower() not in SUFFIXES:
        _refuse(source, f"is no plan's file: its name ends in {', '.join(SUFFIXES)}")
    text = _text_of(place, source)
    if not text.strip():
        _refuse(source, 'is empty: write {"tasks": [...]}')
    load = load_json if place.suffix.lower() == ".json" else load_yaml
    return load(text, source)


def _called(path: str | Path) -> str:
    return shortened(str(path), 200) or "the plan"


def _text_of(path: Path, source: str) -> str:
    try:
        kind = os.stat(path)
        if stat.S_ISDIR(kind.st_mode):
            _refuse(source, "is a directory: name a file in it")
        if not stat.S_ISREG(kind.st_mode):
            _refuse(source, "is no ordinary file")
        if kind.st_size > LARGEST_FILE:
            _refuse(source, f"{kind.st_size:,} bytes are more than the {LARGEST_FILE:,} that a plan may have")
        with open(path, "rb") as file:
            written = file.read(LARGEST_FILE + 1)
    except PlanError:
        raise
    except FileNotFoundError:
        _refuse(
            source, f"there is no such file in {shortened(str(path.parent.absolute()), 200)}{_similar(path)}"
        )
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else str(error)
        _refuse(source, f"cannot be read: {shortened(str(why), 200)}")
    try:
        return written.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = written.count(b"\n", 0, error.start) + 1
        _refuse(f"{source}, line {line}", "is not encoded in UTF-8: save it as UTF-8")


def _similar(path: Path) -> str:
    """The file that may have been meant."""
    try:
        with os.scandir(path.parent) as found:
            names = [entry.name for _, entry in zip(range(500), found, strict=False)]
    except (OSError, ValueError):
        return ""
    near = suggestion(path.name, [name for name in names if name.lower().endswith(SUFFIXES)])
    return near if near.startswith("; did") else ""


def _refuse(place: str, says: str) -> NoReturn:
    raise PlanError([Mistake(place, says)], place) from None
