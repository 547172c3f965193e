"""What an event or an artifact may carry: JSON without secrets, and never too much of it.

Prefect refuses events over 1.5 MB, and what a service says in an error has no bound. What is cut says so.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from datetime import date
from enum import Enum
from typing import Any, cast

from prefect_resilience.errors.secrets.redact import redact, redact_data

LIMIT = 100_000
"""Bytes of JSON that a payload may have."""

NAME = 300
"""Letters that the name of a resource may have."""

DEPTH = 10
STEPS = ((20_000, 500), (4_000, 100), (1_000, 25), (300, 10))
"""Letters of a text and items of a list or object that are kept: as many as the limit allows."""

FEWEST = 10
SHORTEST = 100
"""When nothing else helps: so many entries, with so many letters."""

MARK = "truncated"
_LOOK_AHEAD = 2_000
"""Letters beyond the cut in which a secret may end that began before it; they are masked, then cut off."""


def fitted(payload: Mapping[str, Any], limit: int = LIMIT) -> dict[str, Any]:
    """The payload as JSON without secrets, of at most `limit` bytes (10,000 or more).

    What is no JSON becomes text. Where something had to be cut, its text ends with how long it was, and
    the payload has "truncated": true.
    """
    for text, items in STEPS:
        cutter = _Cutter(text, items, limit)
        try:
            made = cast("dict[str, Any]", redact_data(cutter.cut(dict(payload))))
        except _TooMuch:
            continue
        made = made if not cutter.cuts else {**made, MARK: True}
        if size_of(made) <= limit:
            return made
    plain = {
        fitted_text(str(key), SHORTEST): value if value is None else fitted_text(_said(value), SHORTEST)
        for key, value in list(payload.items())[:FEWEST]
        if not isinstance(value, dict | list | tuple | set | frozenset)
    }
    return {**redact_data(plain), MARK: True}


def fitted_text(text: str, most: int) -> str:
    """The text without secrets and of at most `most` letters, the last of which say that it was cut."""
    clean = redact(sound(text[: most + _LOOK_AHEAD]))
    return clean if len(text) <= most and len(clean) <= most else clean[: most - 1] + "…"


def size_of(payload: Any) -> int:
    """Bytes of its JSON."""
    return len(json.dumps(payload, ensure_ascii=False).encode())


def sound(text: str) -> str:
    """The text as every database takes it: without NUL, and without halves of letters."""
    return text.replace("\0", "\N{REPLACEMENT CHARACTER}").encode("utf-8", "replace").decode()


class _TooMuch(Exception):
    """More than the limit came together: cut more from each."""


class _Cutter:
    """Makes JSON of anything: so many letters a text, items a list and letters altogether at most."""

    def __init__(self, text: int, items: int, limit: int) -> None:
        self.text = text
        self.items = items
        self.left = limit
        self.cuts = 0

    def cut(self, value: Any, depth: int = DEPTH) -> Any:
        self._spend(2)
        if value is None or isinstance(value, bool | int):
            return value if not isinstance(value, int) or abs(value) < 2**63 else self._text(str(value))
        if isinstance(value, float):
            return value if math.isfinite(value) else str(value)
        if isinstance(value, str):
            # Not the enumeration's own text: in Python 3.10 that is its name.
            return self._text(value.value if isinstance(value, Enum) else value)
        if isinstance(value, date):
            return value.isoformat()
        if not isinstance(value, dict | list | tuple | set | frozenset):
            return self._text(_said(value))
        if depth == 0:
            self.cuts += 1
            return "…"
        if isinstance(value, dict):
            return self._object(cast("dict[Any, Any]", value), depth)
        return self._list(list(cast("list[Any]", value)), depth)

    def _object(self, value: dict[Any, Any], depth: int) -> dict[str, Any]:
        kept = list(value.items())[: self.items]
        made = {self._text(str(key)): self.cut(item, depth - 1) for key, item in kept}
        if len(value) > len(kept):
            self.cuts += 1
            made["…"] = f"{len(value) - len(kept)} more"
        return made

    def _list(self, value: list[Any], depth: int) -> list[Any]:
        made = [self.cut(item, depth - 1) for item in value[: self.items]]
        if len(value) > self.items:
            self.cuts += 1
            made.append(f"… {len(value) - self.items} more")
        return made

    def _spend(self, letters: int) -> None:
        self.left -= letters
        if self.left < 0:
            raise _TooMuch

    def _text(self, text: str) -> str:
        self._spend(min(len(text), self.text))
        if len(text) <= self.text:
            return sound(text)
        self.cuts += 1
        return f"{fitted_text(text, self.text)} ({len(text)} characters)"


def _said(value: Any) -> str:
    try:
        return str(value)
    except Exception:  # noqa: BLE001 - an object may do anything when it is asked for its text
        return f"<{type(value).__name__}>"
