"""append_once: add to the end of a text, even if the same was begun before and cut off."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from prefect_resilience.errors.exceptions import ConfigurationError


@dataclass(frozen=True, slots=True)
class AppendResult:
    """What became of an `append_once`.

    `text` is the whole text afterwards; `skipped` counts the characters of the addition that were there
    already.

    Example:
        >>> append_once("Met Ada. Sent", " Sent it.").outcome
        'resumed'
    """

    text: str
    outcome: Literal["appended", "already_present", "resumed"]
    skipped: int


def append_once(text: str, addition: str, *, shortest: int = 1) -> AppendResult:
    """`text` with `addition` at its end, once.

    "already_present": the text ends with it, white space behind it aside, and stays as it is. "resumed": the
    text ends with a beginning of it, as an append leaves behind that was cut off; the rest is added.
    "appended": all of it is added. Line ends count the same as LF and as CRLF.

    A text that ends by chance in the addition's first letters cannot be told from one that was cut off. Let
    additions begin with something of their own, a line break and a date, or say with `shortest` how many
    characters of a beginning are no chance.

    Example:
        >>> append_once("Met Ada.", " Sent it.").text
        'Met Ada. Sent it.'
        >>> append_once("Met Ada. Sent it.", " Sent it.").outcome
        'already_present'
    """
    if shortest < 1:
        raise ConfigurationError(f"append_once(shortest={shortest!r}): write a number of characters above 0")
    if _stands(text, addition):
        return AppendResult(text, "already_present", len(addition))
    begun = _begun(text, addition)
    if begun >= shortest:
        return AppendResult(text + addition[begun:], "resumed", begun)
    if addition.strip() and _stands(text.rstrip(), addition.rstrip()):
        return AppendResult(text, "already_present", len(addition))
    return AppendResult(text + addition, "appended", 0)


def _stands(text: str, addition: str) -> bool:
    return text.endswith(addition) or _lines(_tail(text, addition)).endswith(_lines(addition))


def _begun(text: str, addition: str) -> int:
    """How many characters of the addition stand at the end of the text already."""
    exact = overlap(addition, _tail(text, addition))
    if "\n" not in addition:
        return exact
    tail, folded = _tail(text, addition), _lines(addition)
    if not tail.endswith("\r"):
        return max(exact, _unfolded(addition, overlap(folded, _lines(tail))))
    # Cut between CR and LF: what is missing begins with the LF.
    whole = _lines(tail + "\n")
    reached = len(folded) if whole.endswith(folded) else overlap(folded, whole)
    if not reached:
        return exact
    place = _unfolded(addition, reached - 1)
    return max(exact, place + addition.startswith("\r\n", place))


def _tail(text: str, addition: str) -> str:
    """As much of the text's end as can matter: each line end may be longer by one than in the addition."""
    return text[-(len(addition) + addition.count("\n") + 1) :]


def _lines(text: str) -> str:
    return text.replace("\r\n", "\n")


def _unfolded(addition: str, seen: int) -> int:
    """The place in the addition that is `seen` characters into it when its line ends count as one."""
    place = 0
    for _ in range(seen):
        place += 2 if addition.startswith("\r\n", place) else 1
    return place


def overlap(beginning: str, text: str) -> int:
    """The length of the longest beginning of the one, shorter than all of it, with which the other ends.

    Linear in both lengths (Knuth, Morris, Pratt).
    """
    falls = [0] * len(beginning)
    length = 0
    for place in range(1, len(beginning)):
        while length and beginning[place] != beginning[length]:
            length = falls[length - 1]
        length += beginning[place] == beginning[length]
        falls[place] = length
    length = 0
    for letter in text:
        if length == len(beginning):
            length = falls[length - 1] if length else 0
        while length and letter != beginning[length]:
            length = falls[length - 1]
        length += bool(beginning) and letter == beginning[length]
    return falls[length - 1] if beginning and length == len(beginning) else length
