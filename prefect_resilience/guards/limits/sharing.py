"""What the processes of a fleet tell each other of an adaptive limit with a name, in the store of
circuits.

Each process publishes seldom what it has found for the whole fleet, moves a quarter of the way to the mean of
the others, and takes an equal share. Of a number that is not divisible, some processes have one place
more. A process that leaves or is killed is forgotten after three intervals, and the others divide its
share. Nothing waits for the store: if it does not answer, each process goes on alone. Together the
processes of a limit write at most WRITES_PER_SECOND: the more there are, the longer the interval.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar, NamedTuple, cast
from urllib.parse import quote, unquote
from uuid import uuid4

from pydantic import BaseModel, ConfigDict

from prefect_resilience.base.naming import digest
from prefect_resilience.base.process import per_process
from prefect_resilience.errors.exceptions import ConfigurationError, StoreUnavailable
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.guards.circuits import registry
from prefect_resilience.guards.limits.dividing import Share
from prefect_resilience.stores import Store
from prefect_resilience.stores.base import Document, scan_all

PREFIX = "adaptive-limit:"
LONGEST_NAME = 600
INTERVAL = 10.0
WRITES_PER_SECOND = 10.0
KEPT_FOR = 3
"""A published number expires after this many intervals."""

SAMPLE = 100
"""At most so many other processes are read; the sample is random."""

ID_DIGITS = 8

CHANGE, LEAST_CHANGE, TOLD_SECONDS = 0.2, 2, 60.0
"""A change is told if it is at least this share of the number and so many calls, and once in that time."""


class LimitSnapshot(BaseModel):
    """An adaptive limit of the fleet: `number` is the sum over its processes, `base` the latency in seconds
    of a call that does not wait; 0 if it is not known."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True, defer_build=True)

    name: str
    number: int
    in_flight: int
    waiting: int
    processes: int
    least: int
    most: int
    base: float


class _Own:
    """The id of this process: random, so that any stretch of ids is a random sample of the processes."""

    def __init__(self) -> None:
        self.id: str = uuid4().hex[:ID_DIGITS]


_own = per_process(_Own)


def place_of(name: str) -> str:
    """The first part of the keys of a limit in the store."""
    quoted = quote(redact(name), safe="", errors="surrogatepass")
    short = quoted if len(quoted) <= LONGEST_NAME else f"{quoted[:LONGEST_NAME]}~{digest(name)}"
    return f"{PREFIX}{short}/"


def interval_for(processes: float) -> float:
    """Seconds between two writes of a process.

    Example:
        >>> interval_for(3), interval_for(100), interval_for(10_000)
        (10.0, 10.0, 1000.0)
    """
    return max(INTERVAL, processes / WRITES_PER_SECOND)


def estimated(ids: Sequence[str], complete: bool) -> float:
    """How many processes there are, from a stretch of their ids; all of them if it is `complete`."""
    if complete or len(ids) < 2:
        return float(len(ids))
    covered = (int(ids[-1], 16) - int(ids[0], 16)) / 16**ID_DIGITS
    return (len(ids) - 1) / max(covered, 16.0**-ID_DIGITS)


def worth_telling(before: int, after: int, since: float) -> bool:
    """Whether a change since the last event, `since` seconds ago, is an event."""
    return since >= TOLD_SECONDS and abs(after - before) >= max(LEAST_CHANGE, CHANGE * before)


class FleetAnswer(NamedTuple):
    """What the store knows of a fleet. offset: the place of this process among all of them, from 0 to 1.
    known: whether what it told before was still there."""

    others: list[Share]
    processes: float
    offset: float
    known: bool


def exchanged(name: str, own: Mapping[str, Any], interval: float) -> FleetAnswer | None:
    """Publish this process's number and read those of others.

    `own`: number, fleet, in_flight, waiting, base. None if the store does not answer. May block.
    """
    try:
        link = registry.link_to(None)
        if link.condition != "ready":
            return None
        return link.exchange(lambda store: told(store, name, _own.id, own, interval))
    except (StoreUnavailable, ConfigurationError):
        return None


def told(store: Store, name: str, who: str, own: Mapping[str, Any], interval: float) -> FleetAnswer:
    """The same, for the process with the id `who`."""
    place, now = place_of(name), store.now()
    key = place + who
    known = store.load(key)
    value = {**own, "name": redact(name)}
    store.swap(key, known.version if known else 0, value, now + KEPT_FOR * interval)
    found = store.scan(place, place, SAMPLE)
    complete = len(found) < SAMPLE
    ids = [one.removeprefix(place) for one, _ in found]
    processes = estimated(ids, complete)
    offset = int(who, 16) / 16**ID_DIGITS
    if complete:
        offset = (sorted({*ids, who}).index(who) + 0.5) / len({*ids, who})
    else:  # a sample of its own for each process: those that follow it
        found = [*store.scan(place, key, SAMPLE), *found][:SAMPLE]
    others = [_share(document.value) for one, document in found if one != key]
    return FleetAnswer(others, processes, offset, known is not None)


def _share(value: Any) -> Share:
    known = cast("dict[str, Any]", value) if isinstance(value, dict) else {}
    return Share(float(known.get("fleet", 0.0)), float(known.get("base", 0.0)))


def get_limits(store: registry.StoreReference = None) -> list[LimitSnapshot]:
    """Every adaptive limit in the store, by name. Raises StoreUnavailable when the store does not answer."""
    return registry.link_to(store).exchange(lambda opened: snapshots(scan_all(opened, PREFIX)))


def snapshots(documents: Iterable[tuple[str, Document]]) -> list[LimitSnapshot]:
    """The limits, from what their processes have published."""
    by_place: dict[str, list[dict[str, Any]]] = {}
    for key, document in documents:
        value: Any = document.value
        if isinstance(value, dict):
            place = key.removeprefix(PREFIX).rpartition("/")[0]
            by_place.setdefault(place, []).append(cast("dict[str, Any]", value))
    return [_snapshot(place, values) for place, values in sorted(by_place.items())]


def _snapshot(place: str, values: list[dict[str, Any]]) -> LimitSnapshot:
    numbers = [int(value.get("number", 0)) for value in values]
    bases = [float(value["base"]) for value in values if value.get("base")]
    return LimitSnapshot(
        name=str(values[0].get("name", unquote(place))),
        number=sum(numbers),
        in_flight=sum(int(value.get("in_flight", 0)) for value in values),
        waiting=sum(int(value.get("waiting", 0)) for value in values),
        processes=len(values),
        least=min(numbers),
        most=max(numbers),
        base=min(bases, default=0.0),
    )
