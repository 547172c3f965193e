"""The number of runs of each task, from counts by parts of names. Pure.

Prefect names a run after its task, with a suffix of three characters: `fetch-3f2`. Its API counts names that
contain a pattern, ignoring case, with `_` for any character: `fetch-___` also counts runs of `prefetch`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

STEM = re.compile(r"^(?P<task>.+)-[0-9a-f]{3}$", re.DOTALL)
UNSAFE = re.compile(r"[%\\]")
"""Characters that a pattern cannot contain, or that databases treat differently."""


def stem_of(name: str) -> str | None:
    """The task in a run's name; None if the name is not a default name of Prefect."""
    found = STEM.match(name)
    return found["task"] if found else None


def pattern_of(stem: str) -> str:
    """The pattern that counts the runs of a task by name."""
    return f"{stem}-___"


def exclusive(counts: Mapping[str, int]) -> dict[str, int] | None:
    """The number of runs of each stem. `counts`: the number of names that contain its pattern.

    None if the counts are ambiguous, as for two stems that differ only in case.

    Example:
        >>> exclusive({"fetch": 30, "prefetch": 10})
        {'prefetch': 10, 'fetch': 20}
    """
    if any(UNSAFE.search(stem) for stem in counts):
        return None
    inside = {stem: _others_counted(stem, counts) for stem in counts}
    alone: dict[str, int] = {}
    # Stems whose pattern matches no other stem come first; the others need their counts.
    for stem in sorted(counts, key=lambda one: len(inside[one])):
        if not inside[stem] <= alone.keys():
            return None
        alone[stem] = counts[stem] - sum(alone[other] for other in inside[stem])
    return alone


def _others_counted(stem: str, stems: Iterable[str]) -> set[str]:
    """The other stems whose runs match the pattern of this one."""
    letters = ("." if letter == "_" else re.escape(letter) for letter in pattern_of(stem))
    pattern = re.compile("".join(letters), re.IGNORECASE | re.DOTALL)
    return {other for other in stems if other != stem and pattern.search(f"{other}-000")}
