"""The document of a circuit: what a new one is, and whether what a store returned is one."""

from __future__ import annotations

import math
from typing import Annotated, Any, cast

from annotated_types import Predicate
from pydantic import Field, ValidationError

from prefect_resilience.guards.circuits.model import CircuitState
from prefect_resilience.guards.circuits.window import Count, StoredFields, StoredWindow

# What a service usually fails, learnt from its calls, and whether it now fails significantly more.
#
# **The baseline.** A call is learnt when it *leaves* the window of a closed circuit, not before. When the
# circuit opens its window is dropped unlearnt, so that an outage does not raise what is held for usual.
# (Only while nothing is known yet it is learnt all the same: else the fixed thresholds, which hold until
# then, would keep a service that usually fails from ever being known.) Failures F and calls C are sums in
# which a call weighs exp(-age / memory); the usual rate is F / C.
#
# **How sure that is.** Decisions use the upper end of the "plus four" interval (Agresti and Coull, 1998):
#
#     p = (F + 2) / (C + 4)          usual = p + 2 * sqrt(p * (1 - p) / (C + 4))
#
# so that little knowledge makes patient, not nervous. Below LEARNT_FROM calls nothing is known. `usual` is
# never more than the policy's `failure_rate`: a service cannot get its users used to any amount of failing.
#
# **The rise.** k failures among n calls are a rise when all of this holds:
#
#     k / n >= floor                                    it is worth anybody's while
#     odds(k / n) >= 2 * odds(usual)                    it is a rise in practice; odds(x) = x / (1 - x)
#     n * KL(k / n, usual) >= ln(1 / CHANCE)            it is no accident
#
#     KL(a, b) = a * ln(a / b) + (1 - a) * ln((1 - a) / (1 - b))
#
# The last line is Chernoff's bound: at the usual rate, P(at least k of n) <= exp(-n * KL). Unlike a z-test
# it holds for every n and for the smallest rates, so that each look at the window raises a false alarm with
# a chance of at most CHANCE. For k failures in a row KL is ln(1 / usual): the same line says how long a row
# must be.
#
# **The recovery.** A service that usually fails some of its calls fails some probes too: `probes_needed`.

Baseline = dict[str, float]
"""{"calls": C, "failures": F, "at": seconds by the store's clock}"""

CHANCE = 1e-5
"""Of a false alarm at one look: z = 4.3 in a one-sided test. A busy circuit is looked at many times a day."""

SURPRISE = math.log(1 / CHANCE)
ODDS_RATIO = 2.0
LEARNT_FROM = 30.0
"""Calls, as they weigh, that make a baseline."""

MOST_CALLS = 1e6
"""More weight than this adds nothing to what is known; numbers stay small."""

NINE_OF_TEN = 1.2816
"""The 90th percentile of a normal distribution."""

HIGHEST = 0.95
"""Even where `failure_rate` is 1: a service that always fails is no baseline for anything."""


def learn(baseline: Baseline | None, calls: int, failures: int, now: float, memory: float) -> Baseline:
    """`baseline` with `calls` more, `failures` of which failed, learnt at `now`; `memory` is in seconds.

    A pause makes forget no more than one `memory` does: a weekend does not undo what a week has taught.
    """
    old = baseline or {"calls": 0.0, "failures": 0.0, "at": now}
    elapsed = min(max(0.0, now - old["at"]), memory)
    kept = math.exp(-elapsed / memory)
    weight = old["calls"] * kept + calls
    failed = old["failures"] * kept + failures
    scale = min(1.0, MOST_CALLS / weight) if weight else 1.0
    return {"calls": weight * scale, "failures": min(failed, weight) * scale, "at": now}


def rate(baseline: Baseline | None) -> float | None:
    """The usual share of calls that fail, as people want to see it; None while too little is known."""
    if baseline is None or baseline["calls"] < LEARNT_FROM:
        return None
    return baseline["failures"] / baseline["calls"]


def usual(baseline: Baseline | None, ceiling: float) -> float | None:
    """The highest rate that may well be the usual one, at most `ceiling`; None while too little is known."""
    if baseline is None or baseline["calls"] < LEARNT_FROM:
        return None
    calls = baseline["calls"] + 4
    share = (baseline["failures"] + 2) / calls
    return min(share + 2 * math.sqrt(share * (1 - share) / calls), ceiling, HIGHEST)


def is_rise(failures: int, calls: int, usual_rate: float, floor: float) -> bool:
    """Whether `failures` of `calls` are significantly, and worth mentioning, above the usual rate."""
    seen = failures / calls
    if seen < floor or seen * (1 - usual_rate) < ODDS_RATIO * usual_rate * (1 - seen):
        return False
    return calls * _divergence(seen, usual_rate) >= SURPRISE


def row_needed(threshold: int, usual_rate: float | None) -> int:
    """How many failures in a row are no accident: `threshold`, or more where failures are usual."""
    if usual_rate is None:
        return threshold
    return max(threshold, math.ceil(SURPRISE / math.log(1 / usual_rate)))


def probes_needed(successes: int, probes: int, usual_rate: float | None) -> int:
    """How many probes may be made for `successes` of them: `probes`, or more where failures are usual.

    The number of calls until the r-th success has the mean r / (1 - u) and the variance r * u / (1 - u)**2;
    at the usual rate u, nine services of ten get there within that many.
    """
    if usual_rate is None:
        return probes
    return max(
        probes, math.ceil((successes + NINE_OF_TEN * math.sqrt(successes * usual_rate)) / (1 - usual_rate))
    )


def _divergence(seen: float, expected: float) -> float:
    """Kullback and Leibler's, of two coins, in nats; `seen` is not 0."""
    failing = seen * math.log(seen / expected)
    return failing if seen == 1 else failing + (1 - seen) * math.log((1 - seen) / (1 - expected))


CircuitDocument = dict[str, Any]

HISTORY_KEPT = 24
"""So many of the latest generations are in a document, in some 50 bytes each."""


class _StoredBaseline(StoredFields):
    calls: float = Field(le=MOST_CALLS)
    failures: float = Field(ge=0)
    at: float


Lease = Annotated[list[float], Field(min_length=2, max_length=2)]
Entry = Annotated[tuple[Count, float, CircuitState, float | None], Field(strict=False)]


class StoredCircuit(StoredFields):
    """The fields of a `CircuitDocument`, as a circuit that nobody has called yet has them."""

    state: CircuitState = "closed"
    generation: Count = 1
    failures_in_row: Count = 0
    successes: Count = 0
    slow_successes: Count = 0
    probe_failures: Count = 0
    unanswered: Count = 0
    window: StoredWindow | None = None
    baseline: Annotated[_StoredBaseline, Predicate(lambda b: b.failures <= b.calls)] | None = None
    opened_at: float | None = None
    retry_at: float | None = None
    hold_until: float | None = None
    openings: Count = 0
    leases: dict[str, Lease] = Field(default_factory=dict)
    reason: str | None = None
    last_error: str | None = None
    history: list[Entry] = Field(default_factory=list[Any])
    updated_at: float = 0.0


def new() -> CircuitDocument:
    """The document of a circuit that nobody has called yet."""
    return StoredCircuit().model_dump()


def remember(document: CircuitDocument, now: float) -> None:
    """Note in the history since when the document is in its state, under its generation, and until when.

    A generation is noted once, since it began and as it stands now; twice where it was forced again after its
    time had come, so that calls went through in between.
    """
    generation, state, retry_at = document["generation"], document["state"], document["retry_at"]
    history: list[list[Any]] = document["history"]
    goes_on = bool(history) and history[-1][0] == generation and not _is_over(history[-1], now)
    since = history[-1][1] if goes_on else round(now, 3)
    before = history[:-1] if goes_on else history
    document["history"] = [*before, [generation, since, state, retry_at]][-HISTORY_KEPT:]


def _is_over(entry: list[Any], now: float) -> bool:
    return entry[3] is not None and entry[3] <= now


def read(value: object) -> CircuitDocument:
    """A document as a store returned it; a new one if the value is damaged or no circuit's document.

    An older version wrote fewer fields: those have the values of a new document. Fields that a later version
    added are kept.
    """
    written = cast("CircuitDocument", value) if isinstance(value, dict) else {}
    document = {**new(), **written}
    try:
        StoredCircuit.model_validate(document)
    except ValidationError as error:
        if {found["loc"][:1] for found in error.errors()} == {("history",)}:
            return read({**document, "history": []})
        return new()
    return new() if document["state"] == "open" and document["retry_at"] is None else document
