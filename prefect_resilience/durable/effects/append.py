"""append_once: append to a text once, even if an earlier attempt was interrupted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

OVER = 20
"""An overlap of at most this many characters counts as a coincidence."""
COMPARED = 100
"""The number of characters from an overlap's start that must not occur elsewhere."""


@dataclass(frozen=True, slots=True)
class AppendResult:
    """The outcome of `append_once`.

    `text` is the whole text afterwards; `skipped` counts the characters of the addition that it already had.

    Example:
        >>> append_once("Met Ada. On Monday we sent her th", " On Monday we sent her the contract.").outcome
        'resumed'
    """

    text: str
    outcome: Literal["appended", "already_present", "resumed"]
    skipped: int


def append_once(text: str, addition: str) -> AppendResult:
    """`text` with `addition` at its end, once.

    "already_present": the text ends with the addition and is unchanged; white space after it does not count.
    "resumed": an earlier append was cut off, so the text ends with a beginning of the addition; the rest is
    added. "appended": all of the addition is added.

    An overlap counts if it has over 20 characters, does not repeat itself, and its first 100 and its last 21
    characters occur nowhere else in the text or in the addition. Otherwise the text may end with a beginning
    of the addition by chance, and all of the addition is added: part of it may then be there twice, and
    nothing is lost. Text is lost only if the text already ended, before any attempt, in over 20 characters
    that begin the addition and occur nowhere else. An addition that may correctly follow itself, such as "10"
    after "110", needs a unique start, such as a line break and a date: otherwise it counts as already
    present.

    Example:
        >>> append_once("Met Ada.", " Sent it.").text
        'Met Ada. Sent it.'
        >>> append_once("Met Ada. Sent it.", " Sent it.").outcome
        'already_present'
        >>> append_once("Total: 1", "10 items").text
        'Total: 110 items'
    """
    if text.endswith(addition):
        return AppendResult(text, "already_present", len(addition))
    begun = overlap(addition, text[-len(addition) :])
    if begun and _tells(text, addition, begun):
        return AppendResult(text + addition[begun:], "resumed", begun)
    if addition.strip() and text.rstrip().endswith(addition.rstrip()):
        if begun >= len(addition.rstrip()):
            # It was cut off within the white space at its end.
            return AppendResult(text + addition[begun:], "resumed", begun)
        return AppendResult(text, "already_present", len(addition))
    return AppendResult(text + addition, "appended", 0)


def _tells(text: str, addition: str, begun: int) -> bool:
    """Whether this overlap shows that an append was cut off.

    If fewer characters or none had been written, the text itself would have ended in at least one period of
    the overlap. That cannot be a coincidence if the period is long and occurs nowhere else.
    """
    written = addition[:begun]
    shown = written[: len(written) - overlap(written, written)]
    if len(shown) <= OVER:
        return False
    # Entries of one kind may begin or end alike, so both ends of the overlap are searched for.
    parts = (shown[:COMPARED], shown[-OVER - 1 :], written[-OVER - 1 :])
    return all(_is_once_in(whole, part) for whole in (text, addition) for part in parts)


def _is_once_in(text: str, part: str) -> bool:
    return text.find(part, text.find(part) + 1) < 0


def overlap(beginning: str, text: str) -> int:
    """The length of the longest proper prefix of `beginning` that `text`, which is not longer, ends with.

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
        while length and letter != beginning[length]:
            length = falls[length - 1]
        length += letter == beginning[length]
    return falls[length - 1] if length == len(beginning) else length
