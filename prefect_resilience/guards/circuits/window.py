"""Sliding windows over the outcomes of calls, as JSON documents and pure functions.

The idea is resilience4j's (`SlidingTimeWindowMetrics`): a span of time has few parts, and totals beside them.

A window document is one of

    {"last": 100, "recent": "ssfs...", "calls": 4, "failures": 1, "slow": 0}
    {"seconds": 60.0, "buckets": [[index, calls, failures, slow], ...], "calls": ..., ...}

`recent` has one letter per call, the newest at the end. A bucket covers seconds / BUCKETS; its index is
the store's time divided by that.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterable
from datetime import timedelta
from functools import lru_cache
from operator import add
from typing import Any, Literal, NamedTuple

from pydantic_core import core_schema as types

from prefect_resilience.base.durations import seconds_of
from prefect_resilience.errors.exceptions import ConfigurationError

BUCKETS = 12
LARGEST_COUNT = 10_000
IN_USE = 60.0
"""Seconds for which the size of a window is kept after a policy with that size last counted."""

LARGEST_SPAN = 86_400.0 * 7
FORMS = 'write "60s" (also "500ms", "1h30m") for a span of time or 100 for the last 100 calls'

Outcome = Literal["s", "f", "S", "F"]
"""Success or failure; a capital letter means that the call was slow."""

Run = tuple[Outcome, int]
"""An outcome and the number of consecutive calls that had it."""

WindowDocument = dict[str, Any]


class WindowTotals(NamedTuple):
    """The totals of a window; `slow` calls may have failed or succeeded."""

    calls: int = 0
    failures: int = 0
    slow: int = 0


def parse_window(window: object) -> int | float:
    """The size of a window: an int is a number of calls, a float a span in seconds.

    Raises ConfigurationError for anything that is neither `100`, `"100"`, `"60s"` nor a timedelta.
    """
    size = window if isinstance(window, int) and not isinstance(window, bool) else None
    if isinstance(window, str | timedelta):
        size = _size_of(window)
    if size is None:
        raise ConfigurationError(f"window={window!r} is not a window: {FORMS}")
    if isinstance(size, int) and not 1 <= size <= LARGEST_COUNT:
        raise ConfigurationError(f"window={size} is not between 1 and {LARGEST_COUNT} calls: {FORMS}")
    if isinstance(size, float) and not 0.01 <= size <= LARGEST_SPAN:
        raise ConfigurationError(f"window={window!r} is not between 10 ms and 7 days: {FORMS}")
    return size


@lru_cache(maxsize=256)  # called three times in each exchange of a circuit
def _size_of(window: str | timedelta) -> int | float | None:
    if isinstance(window, str) and re.fullmatch(r"\s*\d+\s*", window):
        return int(window)
    seconds = None if isinstance(window, str) and re.fullmatch(r"[\s\d.]*", window) else seconds_of(window)
    return None if seconds is None else float(seconds)


def canonical_window(window: object) -> int | str:
    """`window` as policies keep it: a number of calls, or seconds as in "60s"."""
    size = parse_window(window)
    return size if isinstance(size, int) else f"{size:.15g}s"


def record(
    document: WindowDocument | None, size: int | float, runs: Iterable[Run], now: float
) -> WindowDocument:
    """`document` with `runs` added at the time `now`; a new one if it is None or has another size."""
    old = document if document and fits(document, size) else {}
    if isinstance(size, int):
        recent = old.get("recent", "") + "".join(outcome * min(number, size) for outcome, number in runs)
        recent = recent[-size:]
        failures, slow = sum(map(recent.count, "fF")), sum(map(recent.count, "SF"))
        return {"last": size, "recent": recent, "calls": len(recent), "failures": failures, "slow": slow}
    index = _index(size, now)
    added = [
        [index, number, number * (outcome in "fF"), number * (outcome in "SF")] for outcome, number in runs
    ]
    return _span(size, [*old.get("buckets", ()), *added], now)


def record_shared(
    document: WindowDocument | None, size: int | float, runs: Iterable[Run], now: float
) -> WindowDocument:
    """`record` where several policies count. The window has the size of the first one that still counts.

    `used` is the time when a policy with the window's own size last counted.
    """
    used = document.get("used", 0.0) if document and not fits(document, size) else now
    if document and now - used < IN_USE:
        size = size_of(document)
    else:
        used = now
    return {**record(document, size, runs, now), "used": used}


def totals(document: WindowDocument | None, now: float) -> WindowTotals:
    """The totals of the window at `now`."""
    if document is not None and "seconds" in document:
        document = _span(document["seconds"], document["buckets"], now)
    return sums(document)


def sums(document: WindowDocument | None) -> WindowTotals:
    """The totals at the time when the document was written."""
    return (
        WindowTotals(document["calls"], document["failures"], document["slow"])
        if document
        else WindowTotals()
    )


def least(calls: int, size: int | float) -> int:
    """The number of calls from which a window is judged: `calls`, or the window's size if that is smaller."""
    return min(calls, size) if isinstance(size, int) else calls


def fits(document: WindowDocument | None, size: int | float) -> bool:
    """Whether there is a window document of this size."""
    return bool(document) and document.get("last" if isinstance(size, int) else "seconds") == size


def size_of(document: WindowDocument) -> int | float:
    """The size of a window document."""
    return document["last"] if "last" in document else document["seconds"]


# What a store's JSON must have, as schemas of pydantic-core: a model would cost a process 20 ms to make.

Schemas = dict[str, types.CoreSchema]


def fields(required: Schemas, optional: Schemas | None = None) -> types.CoreSchema:
    """The schema of an object with these fields; more fields are ignored."""
    rows = {name: types.typed_dict_field(schema) for name, schema in required.items()}
    more = {name: types.typed_dict_field(schema, required=False) for name, schema in (optional or {}).items()}
    return types.typed_dict_schema({**rows, **more}, config={"strict": True, "allow_inf_nan": False})


def _has_each_call(window: WindowDocument) -> WindowDocument:
    if len(window["recent"]) != window["calls"]:
        raise ValueError("it has more or fewer outcomes than calls")
    return window


COUNT = types.int_schema(ge=0)
_SUMS: Schemas = {"calls": COUNT, "failures": COUNT, "slow": COUNT}
_USED: Schemas = {"used": types.float_schema()}
_CALLS = fields({**_SUMS, "last": COUNT, "recent": types.str_schema()}, _USED)
_BUCKETS = types.list_schema(types.list_schema(types.int_schema(), min_length=4, max_length=4))
WINDOW = types.union_schema(
    [
        types.no_info_after_validator_function(_has_each_call, _CALLS),
        fields({**_SUMS, "seconds": types.float_schema(gt=0), "buckets": _BUCKETS}, _USED),
    ]
)


def _span(seconds: float, buckets: list[list[int]], now: float) -> WindowDocument:
    """The document of these buckets, without those that have left the window."""
    index, parts = _index(seconds, now), list[list[int]]()
    for bucket in buckets:
        # A bucket in the future was written before the clock was set back. It counts as the current one.
        at = min(bucket[0], index)
        if parts and parts[-1][0] == at:
            parts[-1] = [at, *map(add, parts[-1][1:], bucket[1:])]
        elif at > index - BUCKETS:
            parts.append([at, *bucket[1:]])
    _, calls, failures, slow = map(sum, zip(*parts, strict=True)) if parts else (0, 0, 0, 0)
    return {"seconds": seconds, "buckets": parts, "calls": calls, "failures": failures, "slow": slow}


def _index(seconds: float, now: float) -> int:
    return math.floor(now * BUCKETS / seconds)
