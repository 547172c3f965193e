"""The evidence that was read, kept in Prefect's home, so that the next call reads only what is new.

One compressed file for each server, of bounded size. A file that is missing, damaged or of another version
means that everything is read again.
"""

from __future__ import annotations

import contextlib
import gzip
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path
from random import Random
from typing import ClassVar

from prefect.settings import PREFECT_HOME
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from prefect_resilience.base.naming import digest
from prefect_resilience.operations.tuning.evidence import NamedRun, is_plain, thinned
from prefect_resilience.operations.tuning.record import RecordedRun

VERSION = 1
FOLDER = "resilience-evidence"
MOST_TROUBLED = 40_000
MOST_BYTES = 200_000_000
"""The most bytes of JSON that are read from a file, which is many times what is written."""


class Evidence(BaseModel):
    """The runs that ended from `since` to `until`, in seconds since the epoch, by task.

    troubled, untold: rows of runs with failures that were seen, and how many of them no event told of.
    sampled: for each stretch in which there were too many runs with failures, how many there were.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)

    version: int = VERSION
    since: float
    until: float
    troubled: int = 0
    untold: int = 0
    sampled: int = 0
    runs: dict[str, tuple[RecordedRun, ...]] = Field(default_factory=dict)

    @classmethod
    def of(cls, since: float, until: float, runs: Iterable[NamedRun], **counts: int) -> Evidence:
        by_task: dict[str, list[RecordedRun]] = {}
        for one in runs:
            by_task.setdefault(one.task, []).append(one.run)
        told = {task: tuple(some) for task, some in by_task.items()}
        return cls.model_construct(None, since=since, until=until, runs=told, **counts)

    def named(self) -> list[NamedRun]:
        return [NamedRun(task, run) for task, runs in self.runs.items() for run in runs]

    def within(self, since: float, until: float) -> Evidence:
        """The part that ended from `since` to `until`."""
        runs = (one for one in self.named() if since <= one.run.end < until)
        return self._with(max(since, self.since), min(until, self.until), runs)

    def joined(self, later: Evidence) -> Evidence:
        """This and what was read later; a run that is in both is the later one."""
        newer = later.named()
        ids = {one.run.run_id for one in newer}
        runs = [*(one for one in self.named() if one.run.run_id not in ids), *newer]
        return Evidence.of(
            self.since,
            later.until,
            runs,
            troubled=self.troubled + later.troubled,
            untold=self.untold + later.untold,
            sampled=self.sampled + later.sampled,
        )

    def bounded(self, most: int, random: Random) -> Evidence:
        """At most `most` runs that succeeded at once, at random, and the latest MOST_TROUBLED others."""
        runs = thinned(self.named(), most, random)
        ends = sorted((one.run.end for one in runs if not is_plain(one.run)), reverse=True)
        if len(ends) <= MOST_TROUBLED:
            return self._with(self.since, self.until, runs)
        since = ends[MOST_TROUBLED]
        return self._with(since, self.until, (one for one in runs if one.run.end > since))

    def _with(self, since: float, until: float, runs: Iterable[NamedRun]) -> Evidence:
        counts = {name: getattr(self, name) for name in ("troubled", "untold", "sampled")}
        return Evidence.of(since, until, runs, **counts)


def kept_evidence(api: str) -> Evidence | None:
    """What the last call kept for the server at this address."""
    try:
        with gzip.open(_path(api), "rb") as file:
            found = Evidence.model_validate_json(file.read(MOST_BYTES))
    except (OSError, EOFError, ValidationError):
        return None
    return found if found.version == VERSION else None


def keep(api: str, evidence: Evidence) -> None:
    """Keep it for the next call. A home that cannot be written means that the next call reads everything."""
    path = _path(api)
    with contextlib.suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        # Written beside it and renamed: two calls at the same time must not mix their files.
        handle, name = tempfile.mkstemp(dir=path.parent)
        try:
            with (
                os.fdopen(handle, "wb") as raw,
                gzip.GzipFile(fileobj=raw, mode="wb", compresslevel=3) as file,
            ):
                file.write(evidence.model_dump_json(exclude_defaults=True).encode())
            Path(name).replace(path)
        except BaseException:
            Path(name).unlink(missing_ok=True)
            raise


def _path(api: str) -> Path:
    return Path(PREFECT_HOME.value()) / FOLDER / f"{digest(api)}.json.gz"
