"""Partial results as an ErrorContext carries them: plain data without secrets, of bounded size."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Iterable
from itertools import accumulate
from typing import Any, cast

from prefect_resilience.base.plain import plain_or_cut
from prefect_resilience.errors.classify.shapes import read
from prefect_resilience.errors.context import PartialOutput
from prefect_resilience.errors.secrets.redact import redact, redact_data

LIMIT = 64_000
"""Characters of JSON that are kept of a partial result, and of all partial results of one failure."""

# More than this, `redact_data` would leave out without a word.
_DEPTH, _ITEMS = 12, 10_000


def partial_output(value: Any, limit: int = LIMIT) -> PartialOutput | None:
    """What had come of the work: plain data, cut to `limit` characters of JSON; None for None.

    Of a list that is too long the first items are kept, of anything else the beginning of its text (its JSON,
    if it is no text). `original_size` is in characters of JSON then.
    """
    if value is None:
        return None
    content, cut = _safe(value, limit)
    size = _size(content)
    if size <= limit:
        return PartialOutput(content=content, truncated=cut, original_size=size if cut else None)
    kept = _first(cast("list[Any]", content), limit) if isinstance(content, list) else []
    return PartialOutput(content=kept or _text(content)[:limit], truncated=True, original_size=size)


def partial_results(
    results: Iterable[tuple[str, Any]], limit: int = LIMIT, *, named: str = "name"
) -> list[dict[str, Any]]:
    """What is done already of a work of several steps, for `ErrorContext.details["partial_results"]`.

    Each becomes `{"name": ..., "value": ...}`, with `named` as the first key; together they take at most
    about `limit` characters of JSON. One that does not fit has the beginning of its text as value, and
    `"truncated": True` beside it.
    """
    kept: list[dict[str, Any]] = []
    left = limit
    for name, value in results:
        content, cut = _safe(value, max(left, 1))
        size = _size(content)
        if size > left:
            content, cut = _text(content)[:left], True
        left = max(left - size, 0)
        kept.append({named: redact(name), "value": content, **({"truncated": True} if cut else {})})
    return kept


def _safe(value: Any, limit: int) -> tuple[Any, bool]:
    """Plain data without secrets, and whether anything was left out of it."""
    content, cut = plain_or_cut(value, depth=_DEPTH, items=min(limit, _ITEMS))
    return redact_data(content), cut


def _first(items: list[Any], limit: int) -> list[Any]:
    """As many of the first items as fit."""
    sums = list(accumulate(_size(item) + 2 for item in items))
    return items[: bisect_right(sums, limit - 2)]


def _size(content: Any) -> int:
    return len(_json(content))


def _text(content: Any) -> str:
    return content if isinstance(content, str) else _json(content)


def _json(content: Any) -> str:
    return json.dumps(content, default=str, ensure_ascii=False)


def partial_of(error: BaseException) -> PartialOutput | None:
    """What an exception itself says that the work had come to, in its attribute `partial_output`."""
    kept = read(error, "partial_output")
    return kept if isinstance(kept, PartialOutput) else partial_output(kept)


def left_by(error: BaseException) -> Any:
    """The value that user code left in an exception's `partial_output`, as it was; None if there is none."""
    kept = read(error, "partial_output")
    return None if isinstance(kept, PartialOutput) else kept
