"""How many runs each task had, from counts by a part of their names. Pure.

Prefect names a run after its task, with three letters: `fetch-3f2`. Its API counts names that contain a
pattern, with `_` for any letter, whatever their case: `fetch-___` counts those of `prefetch` as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

STEM = re.compile(r"^(?P<task>.+)-[0-9a-f]{3}$", re.DOTALL)
UNSAFE = re.compile(r"[%\\]")
"""What a pattern cannot say, or databases say differently."""


def stem_of(name: str) -> str | None:
    """What a run's name says of its task; None where it is no name that Prefect gives."""
    found = STEM.match(name)
    return found["task"] if found else None


def pattern_of(stem: str) -> str:
    """What the names of a task's runs are counted by."""
    return f"{stem}-___"


def exclusive(counts: Mapping[str, int]) -> dict[str, int] | None:
    """The runs of each stem alone, where `counts` are those of all names that contain its pattern.

    None where that cannot be told, as of two that differ in nothing but the case of their letters.

    Example:
        >>> exclusive({"fetch": 30, "prefetch": 10})
        {'prefetch': 10, 'fetch': 20}
    """
    if any(UNSAFE.search(stem) for stem in counts):
        return None
    inside = {stem: _others_counted(stem, counts) for stem in counts}
    alone: dict[str, int] = {}
    # What contains nothing else comes first: of every other one, all that it contains is known by then.
    for stem in sorted(counts, key=lambda one: len(inside[one])):
        if not inside[stem] <= alone.keys():
            return None
        alone[stem] = counts[stem] - sum(alone[other] for other in inside[stem])
    return alone


def _others_counted(stem: str, stems: Iterable[str]) -> set[str]:
    """The other stems of which the runs are counted with these."""
    letters = ("." if letter == "_" else re.escape(letter) for letter in pattern_of(stem))
    pattern = re.compile("".join(letters), re.IGNORECASE | re.DOTALL)
    return {other for other in stems if other != stem and pattern.search(f"{other}-000")}
