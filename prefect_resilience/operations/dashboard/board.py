"""What the page shows, as rows with versions: a reader puts whole parts in, each browser asks what is new."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

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
