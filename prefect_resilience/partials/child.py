"""Partial results from a child process, which may be killed: each is written to a file at once."""

from __future__ import annotations

import os
import pickle
import shutil
import tempfile
import weakref
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import cloudpickle  # pyright: ignore[reportMissingTypeStubs]

from prefect_resilience.errors.context import ErrorContext

from .current import Notes


@dataclass(frozen=True)
class Carried:
    """What a child takes along of the notes of its run, and where it leaves its own."""

    folder: str
    before: bytes | None
    previous: ErrorContext | None
    violations: list[dict[str, Any]]

    def unpacked(self) -> Notes:
        """The notes on the side of the child."""
        before = None if self.before is None else pickle.loads(self.before)
        return Notes(
            before=before, previous=self.previous, violations=list(self.violations), sink=self._write
        )

    def _write(self, notes: Notes) -> None:
        packed = _packed((notes.kept, notes.appends, notes.dropped))
        if packed is not None:
            file = Path(self.folder, "partial")
            with suppress(OSError):
                file.with_suffix(".new").write_bytes(packed)
                os.replace(file.with_suffix(".new"), file)

    def read(self, notes: Notes) -> None:
        """Take over, on the side of the parent, what the child had kept."""
        with suppress(Exception):  # what it kept may be of a class that only the child knows
            left = pickle.loads(Path(self.folder, "partial").read_bytes())
            notes.kept, notes.appends, notes.dropped = left


def carried(notes: Notes | None, owner: object) -> Carried:
    """What to hand to a child. The folder is there as long as its owner."""
    folder = tempfile.mkdtemp(prefix="prefect-resilience-")
    weakref.finalize(owner, shutil.rmtree, folder, ignore_errors=True)
    if notes is None:
        return Carried(folder, None, None, [])
    return Carried(folder, _packed(notes.before), notes.previous, notes.violations)


def _packed(value: Any) -> bytes | None:
    """None for what cannot travel."""
    try:
        return cloudpickle.dumps(value)  # pyright: ignore[reportUnknownMemberType]
    except Exception:  # noqa: BLE001 - each object has its own way to say no
        return None
