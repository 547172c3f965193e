"""JSON in the texts that language models give: bare, or in a fenced block with prose around it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

FENCE = "```"
MOST_BLOCKS = 20
"""Fenced blocks of one text that are looked at."""


class NotJson(ValueError):
    """A text is no JSON, nor has it a block of it; the message says where reading it ended."""


def read_json(text: str) -> tuple[Any, str]:
    """The value that a text is in JSON, and the JSON itself; of a text with fenced blocks the first that is.

    NaN and infinities are no JSON. Raises `NotJson`.
    """
    first: str | None = None
    for candidate in (text, *_blocks(text)):
        source = candidate.strip().removeprefix("\ufeff")
        try:
            return json.loads(source, parse_constant=_refused), source
        except (ValueError, RecursionError) as error:
            first = first or ("it is nested too deeply" if isinstance(error, RecursionError) else str(error))
    raise NotJson(f"no JSON: {first}") from None


def _refused(constant: str) -> Any:
    raise ValueError(f"{constant} is no JSON")


def _blocks(text: str) -> Iterator[str]:
    """What stands between fences: up to the next one, then up to the last one, as its texts may have some."""
    start = text.find(FENCE)
    last = text.rfind(FENCE)
    for _ in range(MOST_BLOCKS):
        line = text.find("\n", start)
        if start < 0 or line < 0 or line > last:
            return
        end = text.find(FENCE, line)
        yield text[line:end]
        if end < last:
            yield text[line:last]
        start = text.find(FENCE, end + len(FENCE))
