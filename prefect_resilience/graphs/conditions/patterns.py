"""Regular expressions that cannot run for ever: bounded when they are read, and while they search.

The syntax is that of the `regex` library, without recursion, comments and flags other than a, i, m, s and u.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from prefect_resilience.base.regexes import Regex
from prefect_resilience.base.values import shortly
from prefect_resilience.graphs.conditions.bounds import PATTERN_SECONDS, Bounds
from prefect_resilience.graphs.conditions.errors import ConditionError

if TYPE_CHECKING:
    import regex

LONGEST_PATTERN = 1_000
LONGEST_TEXT = 1_000_000
_MOST_PIECES = 1_000
_DEEPEST = 50

_TRIAL_SECONDS = 0.05
_REPEATS = 500
_MOST_LETTERS = 4
_REPEATED_GROUP = Regex(r"\)[*+{]")

_PIECE = Regex(
    r"(?P<one>\\.|\[\^?\]?(?:\\.|[^\]\\])*\])"
    r"|(?P<open>\()"
    r"|(?P<close>\))"
    r"|(?P<times>\{(?P<least>\d*)(?:,\d*)?\})"
    r"|(?P<other>.)",
    re.DOTALL | re.ASCII,
)
_GROUP = Regex(r"\((?!\?)|\(\?(?:[:=!>|]|<[=!]|P?<[^\W\d]\w*>|P=\w+\)|[aimsu]+(?:-[ims]+)?[:)])")


class PatternMistake(ValueError):
    """A pattern that is not accepted; the message says why."""


@lru_cache(maxsize=200)
def compiled_pattern(pattern: str) -> regex.Pattern[str]:
    """The pattern, ready to search. Raises `PatternMistake`."""
    _affordable(pattern)
    import regex  # takes its time to load

    try:
        return regex.compile(pattern, cache_pattern=False)
    except (regex.error, ValueError, LookupError, OverflowError, RecursionError) as error:
        raise PatternMistake(f"{shortly(pattern)} is no regular expression: {error}") from None


def matches(pattern: str, text: str, bounds: Bounds, *, whole: bool = False) -> bool:
    """Whether the pattern is found in `text`, or matches all of it.

    Raises `ConditionError` when that takes longer than the bounds allow, or the text is too long.
    """
    if len(text) > LONGEST_TEXT:
        raise ConditionError(
            f"a text of {len(text):,} characters is too long to match: {LONGEST_TEXT:,} at most"
        )
    ready = compiled_pattern(pattern)
    left = bounds.left()
    try:
        return bool((ready.fullmatch if whole else ready.search)(text, timeout=min(left, PATTERN_SECONDS)))
    except TimeoutError:
        if left < PATTERN_SECONDS:
            raise bounds.passed() from None
    raise ConditionError(f"the pattern {shortly(pattern)} took longer than {PATTERN_SECONDS:g} s to match")


@lru_cache(maxsize=1_000)
def runs_away(pattern: str) -> bool:
    """Whether the search takes for ever on short texts that almost match, made of the pattern's own letters.

    A trial and no proof: what it does not find is stopped when it searches.
    """
    if _REPEATED_GROUP.search(pattern) is None:
        return False
    ready = compiled_pattern(pattern)
    letters = list(dict.fromkeys(letter for letter in pattern if letter.isalnum()))[:_MOST_LETTERS] or ["a"]
    try:
        for part in (*letters, "".join(letters), "a", "0", " "):
            ready.search(part * _REPEATS + "\0", timeout=_TRIAL_SECONDS)
    except TimeoutError:
        return True
    return False


def _affordable(pattern: str) -> None:
    """Refuses what would be slow to compile: the library writes out `{n}` n times."""
    if len(pattern) > LONGEST_PATTERN:
        raise PatternMistake(
            f"a pattern may have {LONGEST_PATTERN:,} characters at most, not {len(pattern):,}"
        )
    sizes, last = [0], 0
    for piece in _PIECE.finditer(pattern):
        if piece["open"]:
            _known_group(pattern, piece.start())
            sizes.append(0)
        elif piece["close"]:
            last = sizes.pop() + 1 if len(sizes) > 1 else 1
            sizes[-1] += last
        elif piece["times"]:
            sizes[-1] += last * (max(int(piece["least"] or 1), 1) - 1)
        else:
            last = 1
            sizes[-1] += 1
        if sizes[-1] > _MOST_PIECES or len(sizes) > _DEEPEST:
            raise PatternMistake(f"{shortly(pattern)} repeats or nests too much to be compiled")


def _known_group(pattern: str, at: int) -> None:
    if _GROUP.match(pattern, at) is None:
        raise PatternMistake(
            f"{shortly(pattern)} has {shortly(pattern[at : at + 6])} at column {at + 1}: "
            f"recursion, comments and flags other than a, i, m, s and u are not accepted"
        )
