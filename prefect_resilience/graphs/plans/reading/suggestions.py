"""The nearest right name for a wrong one, also among a hundred thousand, and for thousands of wrong ones."""

from __future__ import annotations

import difflib
import re
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Any

from prefect_resilience.graphs.plans.reading.mistakes import quoted, shortened

LONGEST = 100
FEW = 500
NEIGHBOURS = 20
MOST_LISTED = 12
COMPARISONS = 8_000
"""Names that one `Names` compares closely, over all that it is asked; then only spelling is looked at."""


def suggestion(wrong: Any, right: Sequence[str]) -> str:
    """`; did you mean 'x'?`, or what may be written instead, to end a sentence with."""
    return Names(right).suggestion(wrong)


class Names:
    """Right names, asked for the one that is nearest to a wrong one."""

    def __init__(self, right: Iterable[str]) -> None:
        self._right = [name for name in right if len(name) <= LONGEST]
        self._left = COMPARISONS
        self._sorted: list[tuple[str, str]] = []
        self._reversed: list[tuple[str, str]] = []
        self._plain: dict[str, str] = {}

    def suggestion(self, wrong: Any, *, listed: bool = True) -> str:
        """`; did you mean 'x'?`; else the names, if they are few and `listed`."""
        near = self.nearest(wrong) if isinstance(wrong, str) else None
        if near is not None:
            return f"; did you mean {quoted(near)}?"
        if listed and 0 < len(self._right) <= MOST_LISTED:
            return f"; write one of {', '.join(shortened(name) for name in sorted(self._right))}"
        return ""

    def nearest(self, wrong: str) -> str | None:
        """The right name that is most like it, None if none is."""
        if not wrong or len(wrong) > LONGEST:
            return None
        if not self._plain:
            self._index()
        spelled = self._plain.get(_spelling(wrong))
        if spelled is not None:
            return spelled
        near = self._right if len(self._right) <= FEW else self._neighbours(wrong)
        if self._left < len(near):
            return None
        self._left -= len(near)
        close = difflib.get_close_matches(wrong, near, n=1)
        return close[0] if close else None

    def _index(self) -> None:
        self._plain = {_spelling(name): name for name in reversed(self._right)}
        if len(self._right) > FEW:
            self._sorted = sorted((name, name) for name in self._right)
            self._reversed = sorted((name[::-1], name) for name in self._right)

    def _neighbours(self, wrong: str) -> list[str]:
        """Names that begin or end most like it."""
        near: dict[str, None] = {}
        for names, key in ((self._sorted, wrong), (self._reversed, wrong[::-1])):
            at = bisect_left(names, (key, ""))
            near.update((name, None) for _, name in names[max(0, at - NEIGHBOURS) : at + NEIGHBOURS])
        return list(near)


def _spelling(name: str) -> str:
    """A name without what is often mistaken: capitals, spaces, - and _."""
    return re.sub(r"[\s_-]+", "", name.casefold()) or name
