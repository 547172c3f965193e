"""What the page shows, as rows with versions: a reader puts whole parts in, each browser asks what is new."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from prefect_resilience.guards.circuits.window import BUCKETS, WindowDocument

Row = dict[str, Any]
Rows = Mapping[str, Row]
GONE_KEPT = 5_000
"""So many removed rows are remembered; a browser that missed more is sent everything."""


class Board:
    """The rows of all parts, by part and id. It counts its changes; a browser remembers the last it was told.

    A browser that is slow, or away, costs nothing: it is told the rows as they are when it asks again.
    """

    def __init__(self) -> None:
        self.version: int = 0
        self._rows: dict[str, dict[str, tuple[Row, int]]] = {}
        self._gone: dict[tuple[str, str], int] = {}
        self._forgotten = 0

    def put(self, part: str, rows: Rows) -> bool:
        """Replace a part by these rows; whether that changed anything."""
        known = self._rows.setdefault(part, {})
        changed = {name: row for name, row in rows.items() if name not in known or known[name][0] != row}
        gone = [name for name in known if name not in rows]
        if not changed and not gone:
            return False
        self.version += 1
        for name, row in changed.items():
            known[name] = (row, self.version)
            self._gone.pop((part, name), None)
        for name in gone:
            del known[name]
            self._gone[part, name] = self.version
        while len(self._gone) > GONE_KEPT:
            self._forgotten = max(self._forgotten, self._gone.pop(next(iter(self._gone))))
        return True

    def since(self, version: int) -> dict[str, Any] | None:
        """What changed after `version` (0: everything), None for nothing.

        `set` has the new rows by part and id, `gone` the ids that are no more; with `all`, what is not in
        `set` is no more.
        """
        if version >= self.version:
            return None
        told: dict[str, Any] = {}
        if version < max(1, self._forgotten):
            told["all"], version = True, 0
        told["set"] = {
            part: fresh
            for part, rows in self._rows.items()
            if (fresh := {name: row for name, (row, changed) in rows.items() if changed > version})
        }
        gone: dict[str, list[str]] = {}
        for (part, name), changed in self._gone.items():
            if changed > version and "all" not in told:
                gone.setdefault(part, []).append(name)
        return {**told, "gone": gone} if gone else told


# The last minutes of a circuit as a small curve, gathered from its window document as that is read again.
#
# A window document holds its calls in twelve buckets, and forgets them when they leave the window. What is
# new since the last reading is added to slots of equal length, so that curves of all circuits can be
# compared.

SLOT = 5.0
"""Seconds that one point of a curve stands for."""

SLOTS = 36
LATE = 1.0
"""Seconds after its end for which a slot is left out: workers merge what they have counted a little later."""

Series = dict[str, list[float]]
"""`calls` and `failed` by slot, the oldest first; one that would be all zeros is left out."""


@dataclass(slots=True)
class Spark:
    """The calls of one circuit by slot. `seen` are the buckets of the last reading, `width` their seconds."""

    slots: dict[int, tuple[float, float]] = field(default_factory=dict[int, tuple[float, float]])
    seen: dict[int, tuple[int, int]] = field(default_factory=dict[int, tuple[int, int]])
    width: float = 0.0

    def series(self, window: WindowDocument | None, now: float) -> Series:
        """The curve at `now`. A window of so many calls has no times: its curve is its last calls."""
        if window is not None and "last" in window:
            recent: str = window["recent"][-SLOTS:]
            return _series([1.0] * len(recent), [float(outcome in "fF") for outcome in recent])
        last = math.floor((now - LATE) / SLOT)
        self._add(window, last - SLOTS)
        shown = [self.slots.get(slot, (0.0, 0.0)) for slot in range(last - SLOTS, last)]
        return _series([calls for calls, _ in shown], [failed for _, failed in shown])

    def _add(self, window: WindowDocument | None, oldest: int) -> None:
        width = 0.0 if window is None else window["seconds"] / BUCKETS
        before = self.seen if width == self.width else {}
        self.width, self.seen = width, {}
        buckets: list[list[int]] = [] if window is None else window["buckets"]
        for index, calls, failed, _ in buckets:
            known = before.get(index, (0, 0))
            if calls < known[0] or failed < known[1]:  # the circuit was reset in between
                known = (0, 0)
            self.seen[index] = (calls, failed)
            if (calls, failed) != known:
                self._spread(index * width, width, calls - known[0], failed - known[1], oldest)
        self.slots = {slot: counts for slot, counts in self.slots.items() if slot >= oldest}

    def _spread(self, start: float, width: float, calls: int, failed: int, oldest: int) -> None:
        """Add the calls of a bucket to the slots that it covers, evenly."""
        end = start + width
        slot = max(math.floor(start / SLOT), oldest)
        while slot * SLOT < end:
            share = (min(end, (slot + 1) * SLOT) - max(start, slot * SLOT)) / width
            had = self.slots.get(slot, (0.0, 0.0))
            self.slots[slot] = (had[0] + calls * share, had[1] + failed * share)
            slot += 1


def _series(calls: list[float], failed: list[float]) -> Series:
    if not any(calls):
        return {}
    told: Series = {"calls": [_short(number) for number in calls]}
    if any(failed):
        told["failed"] = [_short(number) for number in failed]
    return told


def _short(number: float) -> Any:
    """Few digits: a thousand curves are sent at once."""
    rounded = round(number, 1)
    return int(rounded) if rounded == int(rounded) else rounded
