"""A model of a service, fitted to the record of all tasks behind it. Pure.

Times are seconds since the epoch, durations seconds. What cannot be known from the record is in `unknown`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from prefect_resilience.operations.tuning.calls import ServiceCall, ServiceRecord, quantile, shares
from prefect_resilience.operations.tuning.latencies import Latency, latency_of
from prefect_resilience.operations.tuning.lengths import OutageLengths, lengths_of
from prefect_resilience.operations.tuning.loads import LoadLimit, load_limit, loads_before
from prefect_resilience.operations.tuning.outages import ServiceOutage, outages_of

NEARLY_AS_LIKELY = 0.3
"""In nats: more than the steps of the grid make, less than the record makes."""

FEW_SEEN = 0.5
"""An outage of which more than this share was not seen has an end that is not known well."""


@dataclass(frozen=True, slots=True)
class RetryLuck:
    """How retries of one category of failure go while the service is up.

    A share `stuck` of the runs fails whatever is done; a retry of the others succeeds with the chance `luck`.
    tried: the retries behind these numbers. most: the most failures in a row that were seen.
    """

    stuck: float
    luck: float
    tried: int
    most: int

    def after(self, failures: int) -> float:
        """The chance that the next attempt succeeds after so many failures, at least one."""
        lost = (1 - self.stuck) * (1 - self.luck) ** (failures - 1)
        total = self.stuck + lost
        return lost * self.luck / total if total else 0.0


@dataclass(frozen=True)
class ServiceModel:
    """What is known of one service.

    usual: the share of first calls that fail while the service is up; categories: of what.
    recovering: how retries go, by category. latency: of the successes of each task while it is up.
    failing: the ordered seconds of failures by category, while up and in outages.
    retry_after: what it usually asks for, by category. lengths: of its outages, if there are enough of them.
    limit: how load makes it fail, if it does.
    overloaded: the keys of the calls that began above the limit; overload: the categories of their failures.
    """

    name: str
    usual: float
    categories: tuple[tuple[str, float], ...]
    recovering: Mapping[str, RetryLuck]
    latency: Mapping[int, Latency]
    failing: Mapping[str, tuple[float, ...]]
    retry_after: Mapping[str, float]
    outages: tuple[ServiceOutage, ...]
    calls: int
    lengths: OutageLengths | None = None
    limit: LoadLimit | None = None
    overloaded: frozenset[int] = frozenset()
    overload: tuple[tuple[str, float], ...] = ()
    unknown: Mapping[str, str] = field(default_factory=dict[str, str])


@dataclass
class _Up:
    """The calls while the service was up, by run."""

    first: int = 0
    failed: list[str] = field(default_factory=list[str])
    sequences: dict[str, list[tuple[int, bool]]] = field(default_factory=dict[str, list[tuple[int, bool]]])
    seconds: dict[int, list[float]] = field(default_factory=dict[int, list[float]])
    in_line: dict[int, list[float]] = field(default_factory=dict[int, list[float]])
    cuts: dict[int, list[float]] = field(default_factory=dict[int, list[float]])


def fitted(record: ServiceRecord, until: float) -> ServiceModel:
    """The model of a service; `until` is the end of the period."""
    outages, limit = _trouble(record.calls, until)
    overloaded = _overloaded(record.calls, limit)
    up = _up(record, in_outages(record.calls, outages), overloaded)
    usual = len(up.failed) / up.first if up.first else 0.0
    failing: dict[str, list[float]] = {}
    asked: dict[str, list[float]] = {}
    for call in record.calls:
        if not call.succeeded:
            failing.setdefault(call.category, []).append(call.seconds)
            if call.retry_after is not None:
                asked.setdefault(call.category, []).append(call.retry_after)
    return ServiceModel(
        name=record.name,
        usual=usual,
        categories=shares(up.failed),
        recovering={name: _recovering(sequences, 1 - usual) for name, sequences in up.sequences.items()},
        latency=_latencies(record, up),
        failing={name: tuple(sorted(seconds)) for name, seconds in failing.items()},
        retry_after={
            name: quantile(sorted(values), 0.5)
            for name, values in asked.items()
            if 2 * len(values) >= len(failing[name])
        },
        outages=outages,
        calls=len(record.calls),
        lengths=lengths_of(
            [
                (one.end_low - one.start, math.inf if one.censored else one.end_high - one.start)
                for one in outages
            ]
        ),
        limit=limit,
        overloaded=overloaded,
        overload=shares(
            call.category
            for call in record.calls
            if not call.succeeded and call.troubled and call.key in overloaded
        ),
        unknown=_unknown(record, outages),
    )


def _trouble(
    calls: Sequence[ServiceCall], until: float
) -> tuple[tuple[ServiceOutage, ...], LoadLimit | None]:
    """The outages, and how load makes the service fail. What a limit explains is no outage."""
    outages = tuple(outages_of(calls, until))
    limit = load_limit(calls, outages)
    if limit is None:
        return outages, None
    loads = loads_before(calls, limit.span)
    failing = {number: 1 - limit.answers(number / limit.span) for number in set(loads)}
    expected = [failing[number] for number in loads]
    return tuple(outages_of(calls, until, expected)), limit


def _overloaded(calls: Sequence[ServiceCall], limit: LoadLimit | None) -> frozenset[int]:
    """The calls that began while the load was above the limit."""
    if limit is None:
        return frozenset()
    loads = loads_before(calls, limit.span)
    return frozenset(
        call.key for call, number in zip(calls, loads, strict=True) if number / limit.span > limit.per_second
    )


def in_outages(calls: Sequence[ServiceCall], outages: Sequence[ServiceOutage]) -> set[int]:
    """The keys of the calls that began in an outage; the calls are ordered by their start."""
    found: set[int] = set()
    at = 0
    for call in calls:
        while at < len(outages) and call.start > outages[at].end:
            at += 1
        if at < len(outages) and call.start >= outages[at].start:
            found.add(call.key)
    return found


def _up(record: ServiceRecord, inside: set[int], overloaded: frozenset[int]) -> _Up:
    up = _Up()
    for calls in record.by_run:
        failures, category = 0, ""
        for call in calls:
            if call.key in inside or call.key in overloaded:
                continue
            if call.succeeded:
                kept = up.in_line if call.waited_in_line else up.seconds
                kept.setdefault(call.task, []).append(call.seconds)
            elif call.cut and not failures:
                up.cuts.setdefault(call.task, []).append(call.seconds)
            if failures:
                up.sequences.setdefault(category, []).append((failures, call.succeeded))
            elif not call.cut:
                up.first += 1
                if not call.succeeded:
                    up.failed.append(call.category)
            if call.succeeded:
                break
            category = category or call.category
            failures += 1
    return up


def _latencies(record: ServiceRecord, up: _Up) -> dict[int, Latency]:
    latencies: dict[int, Latency] = {}
    for number in range(len(record.tasks)):
        seconds = up.seconds.get(number) or up.in_line.get(number) or []
        cuts = up.cuts.get(number, [])
        latencies[number] = latency_of(seconds, len(cuts), min(cuts) if cuts else None)
    return latencies


def _recovering(sequences: Sequence[tuple[int, bool]], good: float) -> RetryLuck:
    """The share of stuck runs and the luck of the others, on a grid.

    sequences: one item for each retry: the failures before it, and whether it succeeded. good: the share of
    first calls that succeed; no retry has more luck.
    """
    counts: dict[tuple[int, bool], int] = {}
    for one in sequences:
        counts[one] = counts.get(one, 0) + 1
    most = max(failures for failures, _ in sequences)
    stuck = [at / 200 for at in range(201)]
    # One retry cannot tell bad luck from a stuck run: of what is nearly as likely, the retries help least.
    found = [
        max((_likelihood(counts, one, luck), luck, one) for one in stuck)
        for luck in (0.005, *(at / 40 for at in range(1, 40) if at / 40 < good), min(0.995, max(0.01, good)))
    ]
    best = max(found)[0]
    _, luck, share = max((one for one in found if one[0] >= best - NEARLY_AS_LIKELY), key=lambda one: one[1])
    return RetryLuck(share, luck, len(sequences), most)


def _likelihood(counts: Mapping[tuple[int, bool], int], stuck: float, luck: float) -> float:
    total = 0.0
    model = RetryLuck(stuck, luck, 0, 0)
    for (failures, succeeded), number in counts.items():
        chance = min(1 - 1e-6, max(1e-6, model.after(failures)))
        total += number * math.log(chance if succeeded else 1 - chance)
    return total


def _unknown(record: ServiceRecord, outages: Sequence[ServiceOutage]) -> dict[str, str]:
    unknown: dict[str, str] = {}
    hidden = sum(one.end_high - one.end_low > FEW_SEEN * max(one.length, 1.0) for one in outages)
    if hidden:
        unknown["end of outages"] = (
            f"the end of {hidden} of {len(outages)} outages was not seen: nothing called the service then"
        )
    if any(one.censored for one in outages):
        unknown["last outage"] = "the last outage had not ended at the end of the record"
    if record.rejected:
        unknown["rejected calls"] = f"{record.rejected} rejected calls say nothing about the service"
    return unknown
