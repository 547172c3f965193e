"""JSON as a plan's text: with comments, bounded before it is read, no NaN, mistakes with line and column."""

from __future__ import annotations

import json
import math
import re
from typing import Any, NoReturn

from prefect_resilience.graphs.plans.reading.data import DEEPEST, Repeated
from prefect_resilience.graphs.plans.reading.mistakes import Mistake, PlanError, shortened

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
        _refuse(source, text, error.pos, f"is no JSON: {says}{_near(text, error.pos)}")
    except _Refused as error:
        at = next((m.start() for m in _WORDS.finditer(text) if m[0] == error.literal), 0)
        _refuse(source, text, at, error.says)
    except RecursionError:
        at = _too_deep(text)
        if at is None:
            says = "cannot be read here: the program is nested too deep itself"
            raise PlanError([Mistake(source, says)], source) from None
        _refuse(source, text, at, f"is nested more than {DEEPEST} levels deep: write it flatter")


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


def _refuse(source: str, text: str, position: int, says: str) -> NoReturn:
    line = text.count("\n", 0, position) + 1
    column = position - text.rfind("\n", 0, position)
    raise PlanError([Mistake(f"{source}, line {line}, column {column}", says)], source) from None
