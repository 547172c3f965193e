"""Partial results from a child process, which may be killed: each is sent to the parent at once."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import cloudpickle  # pyright: ignore[reportMissingTypeStubs]

from prefect_resilience.errors.context import ErrorContext
from prefect_resilience.guards.partials.current import Notes


@dataclass
class Carried:
    """What a child takes along of the notes of its run, and what it kept itself."""

    before: bytes | None = None
    previous: ErrorContext | None = None
    violations: list[dict[str, Any]] = field(default_factory=list[dict[str, Any]])
    left: bytes | None = None

    def unpacked(self, send: Callable[[bytes], None]) -> Notes:
        """The notes on the side of the child, which sends all that it keeps."""

        def sink(notes: Notes) -> None:
            packed = _packed((notes.kept, notes.appends, notes.dropped))
            if packed is not None:
                send(packed)

        before = None if self.before is None else pickle.loads(self.before)
        return Notes(before=before, previous=self.previous, violations=list(self.violations), sink=sink)

    def read(self, notes: Notes) -> None:
        """Take over, on the side of the parent, what the child had kept."""
        left, self.left = self.left, None
        if left is not None:
            with suppress(Exception):  # what it kept may be of a class that only the child knows
                notes.kept, notes.appends, notes.dropped = pickle.loads(left)


def carried(notes: Notes | None) -> Carried:
    """What to hand to a child."""
    if notes is None:
        return Carried()
    return Carried(_packed(notes.before), notes.previous, notes.violations)


def _packed(value: Any) -> bytes | None:
    """None for what cannot travel."""
    try:
        return cloudpickle.dumps(value)  # pyright: ignore[reportUnknownMemberType]
    except Exception:  # noqa: BLE001 - each object has its own way to say no
        return None
