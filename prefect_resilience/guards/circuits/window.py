"""Sliding windows over the outcomes of calls, as JSON documents and pure functions.

The idea is resilience4j's (`SlidingTimeWindowMetrics`): totals are kept beside the parts, and a part that
leaves the window is subtracted from them. Reading the totals therefore costs the same for any window.

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
from dataclasses import dataclass
from datetime import timedelta
from functools import lru_cache
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Predicate
from pydantic import BaseModel, ConfigDict, Field

from prefect_resilience.base.durations import seconds_of
from prefect_resilience.errors.exceptions import ConfigurationError

BUCKETS = 12
LARGEST_COUNT = 10_000
LARGEST_SPAN = 86_400.0 * 7
FORMS = 'write "60s" (also "500ms", "1h30m") for a span of time or 100 for the last 100 calls'

Outcome = Literal["s", "f", "S", "F"]
"""Success or failure; a capital letter means that the call was slow."""

Run = tuple[Outcome, int]
"""An outcome and the number of consecutive calls that had it."""

WindowDocument = dict[str, Any]


@dataclass(frozen=True, slots=True)
class WindowTotals:
    """The totals of a window; `slow` calls may have failed or succeeded."""

    calls: int = 0
    failures: int = 0
    slow: int = 0


def parse_window(window: object) -> int | float:
    """The size of a window: an int is a number of calls, a float a span in seconds.

    Raises ConfigurationError for anything that is neither `100`, `"100"`, `"60s"` nor a timedelta.
    """
    if isinstance(window, timedelta):
        return _span(window.total_seconds(), window)
    if isinstance(window, int) and not isinstance(window, bool):
        return _count(window)
    if isinstance(window, str):
        return _size_of_text(window)
    raise ConfigurationError(f"window={window!r} is not a window: {FORMS}")


@lru_cache(maxsize=256)  # called three times in each exchange of a circuit
def _size_of_text(window: str) -> int | float:
    if re.fullmatch(r"\s*\d+\s*", window):
        return _count(int(window))
    seconds = None if re.fullmatch(r"[\s\d.]*", window) else seconds_of(window)
    if seconds is None:
        raise ConfigurationError(f"window={window!r} is not a window: {FORMS}")
    return _span(seconds, window)


def _count(calls: int) -> int:
    if 1 <= calls <= LARGEST_COUNT:
        return calls
    raise ConfigurationError(f"window={calls} is not between 1 and {LARGEST_COUNT} calls: {FORMS}")


def _span(seconds: float, written: object) -> float:
    if 0.01 <= seconds <= LARGEST_SPAN:
        return float(seconds)
    raise ConfigurationError(f"window={written!r} is not between 10 ms and 7 days: {FORMS}")


def canonical_window(window: object) -> int | str:
    """`window` as policies keep it: a number of calls, or seconds as in "60s"."""
    size = parse_window(window)
    return size if isinstance(size, int) else f"{size:.15g}s"


def record(
    document: WindowDocument | None, size: int | float, runs: Iterable[Run], now: float
) -> WindowDocument:
    """`document` with `runs` added at the time `now`; a new one if it is None or has another size."""
    fitting = document if fits(document, size) else None
    if isinstance(size, int):
        return _record_last(fitting, size, runs)
    return _record_span(fitting, size, runs, now)


def totals(document: WindowDocument | None, now: float) -> WindowTotals:
    """The totals of the window at `now`."""
    if document is None:
        return WindowTotals()
    if "seconds" in document:
        document = _age(document, _index(document["seconds"], now))
    return WindowTotals(document["calls"], document["failures"], document["slow"])


def sums(document: WindowDocument | None) -> tuple[int, int, int]:
    """Calls, failures and slow calls at the time when the document was written."""
    return (document["calls"], document["failures"], document["slow"]) if document else (0, 0, 0)


def least(calls: int, size: int | float) -> int:
    """The number of calls from which a window is judged: `calls`, or the window's size if that is smaller."""
    return min(calls, size) if isinstance(size, int) else calls


def fits(document: WindowDocument | None, size: int | float) -> bool:
    """Whether there is a window document of this size."""
    return bool(document) and document.get("last" if isinstance(size, int) else "seconds") == size


def size_of(document: WindowDocument) -> int | float:
    """The size of a window document."""
    return document["last"] if "last" in document else document["seconds"]


class StoredFields(BaseModel):
    """The fields that a store's JSON must have, with the right types."""

    model_config: ClassVar[ConfigDict] = ConfigDict(strict=True, allow_inf_nan=False, defer_build=True)


Count = Annotated[int, Field(ge=0)]


class _StoredSums(StoredFields):
    calls: Count
    failures: Count
    slow: Count


class StoredCalls(_StoredSums):
    """A window over a number of calls."""

    last: Count
    recent: str


class StoredSpan(_StoredSums):
    """A window over a span of time."""

    seconds: float = Field(gt=0)
    buckets: list[Annotated[list[int], Field(min_length=4, max_length=4)]]


StoredWindow = Annotated[StoredCalls, Predicate(lambda w: len(w.recent) == w.calls)] | StoredSpan


def _record_last(document: WindowDocument | None, size: int, runs: Iterable[Run]) -> WindowDocument:
    recent = document["recent"] if document else ""
    calls, failures, slow = sums(document)
    for outcome, number in runs:
        added = outcome * min(number, size)
        recent += added
        gone = recent[: max(0, len(recent) - size)]
        recent = recent[len(gone) :]
        failures += _failures(added) - _failures(gone)
        slow += _slow(added) - _slow(gone)
        calls = len(recent)
    return {"last": size, "recent": recent, "calls": calls, "failures": failures, "slow": slow}


def _failures(outcomes: str) -> int:
    return outcomes.count("f") + outcomes.count("F")


def _slow(outcomes: str) -> int:
    return outcomes.count("S") + outcomes.count("F")


def _record_span(
    document: WindowDocument | None, size: float, runs: Iterable[Run], now: float
) -> WindowDocument:
    index = _index(size, now)
    if document is None:
        document = {"seconds": size, "buckets": [], "calls": 0, "failures": 0, "slow": 0}
    document = _age(document, index)
    calls = failures = slow = 0
    for outcome, number in runs:
        calls += number
        failures += number if outcome in "fF" else 0
        slow += number if outcome in "SF" else 0
    buckets: list[list[int]] = document["buckets"]
    if buckets and buckets[-1][0] >= index:
        last = buckets[-1]
        buckets[-1] = [last[0], last[1] + calls, last[2] + failures, last[3] + slow]
    else:
        buckets.append([index, calls, failures, slow])
    document["calls"] += calls
    document["failures"] += failures
    document["slow"] += slow
    return document


def _age(document: WindowDocument, index: int) -> WindowDocument:
    """A copy without the buckets that have left the window when the current one is `index`."""
    calls, failures, slow = sums(document)
    kept: list[list[int]] = []
    for bucket in document["buckets"]:
        # A bucket in the future was written before the clock was set back. It counts as the current one.
        at = min(bucket[0], index)
        if at <= index - BUCKETS:
            calls, failures, slow = calls - bucket[1], failures - bucket[2], slow - bucket[3]
        elif kept and kept[-1][0] == at:
            kept[-1] = [at, *(a + b for a, b in zip(kept[-1][1:], bucket[1:], strict=True))]
        else:
            kept.append([at, *bucket[1:]])
    return {**document, "buckets": kept, "calls": calls, "failures": failures, "slow": slow}


def _index(seconds: float, now: float) -> int:
    return math.floor(now * BUCKETS / seconds)
