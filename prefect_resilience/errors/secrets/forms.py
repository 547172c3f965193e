"""The table of the forms of secrets: `forms.txt`, read when the package is imported."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path

MASK = "***"
PIECES: dict[str, str] = {}
"""Expressions by their names."""
FORMS: list[tuple[tuple[str, ...], str, str]] = []
"""The triggers, the word for how to mask, and the expression of each form."""

for _line in re.sub(r"\n  ", "", Path(__file__).with_name("forms.txt").read_text("utf-8")).splitlines():
    if _line and not _line.startswith("#"):
        _parts = re.fullmatch(r"(\[.*?\]|\w+) (=|[a-z]+) ?(.*)", _line)
        assert _parts is not None, _line
        _regex = re.sub(r"\{([A-Z_]+)\}", lambda name: PIECES[name[1]], _parts[3])
        if _parts[2] == "=":
            PIECES[_parts[1]] = _regex
        else:
            FORMS.append((tuple(json.loads(_parts[1])), _parts[2], _regex))


@cache
def piece(name: str) -> re.Pattern[str]:
    """A piece as an expression for which small and capital letters are the same."""
    return re.compile(PIECES[name], re.IGNORECASE)
