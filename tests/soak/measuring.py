"""What a process holds, over time, and whether it is flat."""

import gc
import os
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import linear_regression, median
from time import monotonic


@dataclass(frozen=True)
class Sample:
    """Seconds since the start, MiB, numbers, and MiB of the store's files."""

    at: float
    laps: int
    memory: float
    threads: int
    files: int
    store: float
    documents: int


def sample(began: float, laps: int, database: Path, documents: int) -> Sample:
    gc.collect()
    status = Path("/proc/self/status").read_text()
    memory = int(status.split("VmRSS:")[1].split()[0]) / 1024
    size = sum(path.stat().st_size for path in database.parent.glob(f"{database.name}*")) / 2**20
    files = len(os.listdir("/proc/self/fd"))
    return Sample(monotonic() - began, laps, memory, threading.active_count(), files, size, documents)


@dataclass(frozen=True)
class Trend:
    """How much a figure grew from the first third after the warm-up to the last, and how much it may."""

    name: str
    first: float
    last: float
    an_hour: float
    allowed: float

    @property
    def flat(self) -> bool:
        return self.last - self.first <= self.allowed


WARM_UP = 0.25
"""The share of the run that is not counted."""


def trends(samples: Sequence[Sample]) -> list[Trend]:
    """Memory and store may grow by 5 %, and 4 MiB or 0.5: their medians count.

    Threads, files and documents come and go, such as letters until they are replayed: the most that there
    were count, and a few more are let be.
    """
    counted = samples[int(len(samples) * WARM_UP) :]
    third = max(len(counted) // 3, 1)
    found: list[Trend] = []
    for name, of, share, least in (
        ("memory", median, 0.05, 4.0),
        ("threads", max, 0.0, 2),
        ("files", max, 0.0, 3),
        ("store", median, 0.05, 0.5),
        ("documents", max, 0.05, 5),
    ):
        values = [float(getattr(one, name)) for one in counted]
        first, last = of(values[:third]), of(values[-third:])
        slope = linear_regression([one.at for one in counted], values).slope if len(counted) > 1 else 0.0
        found.append(Trend(name, first, last, slope * 3600, max(share * first, least)))
    return found
