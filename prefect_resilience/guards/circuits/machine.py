"""The circuit as a pure function: `step(document, event, now, policy) -> (document, changes)`.

`document` is JSON, the only thing that a fleet shares about a circuit; `now` is the store's clock in
seconds. Nothing is read from anywhere else, and no argument is changed.

    closed ──failures──> open ──time──> half_open ──successes──> closed
                          ^                 │
                          └────failures─────┘        forced_open, disabled: by hand

Half-open judges by what is usual: `success_threshold` successes among at most `most_probes` probes close it,
and it opens again once they are out of reach. Else a service of which a few calls always fail would be kept
out. One that answered no probe of the half-open period before gets no such patience.

Every change of state begins a new generation. What was begun under an older one does not count (the
fence of gobreaker). In half_open each probe holds a lease of its own, with its owner and its expiry, so
that a prober that died frees its place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from prefect_resilience.guards.circuits import document, window
from prefect_resilience.guards.circuits.document import CircuitDocument, new, read, remember
from prefect_resilience.guards.circuits.model import CircuitPolicy, CircuitState

__all__ = [
    "Acquire",
    "Change",
    "CircuitDocument",
    "Event",
    "Force",
    "Record",
    "Refusal",
    "Release",
    "Reset",
    "Tick",
    "new",
    "read",
    "refusal",
    "step",
]

TEXT_LIMIT = 300
RETRY_AFTER_LIMIT = 86_400.0
"""A server may ask for a day of quiet; what it names beyond that is taken for a mistake."""
EXPONENT_LIMIT = 60
SECOND_LOOK = 0.5
"""The first re-opening, and one after probes of which some succeeded, lasts this share of `open_for`."""
PASSING: tuple[CircuitState, ...] = ("closed", "disabled")


@dataclass(frozen=True, slots=True)
class Record:
    """Calls that have ended, in their order, and the generation under which they began.

    `owner` is the lease that one probe gives back with it. `retry_after` is the longest pause in seconds
    that the server asked for with these failures.
    """

    generation: int
    runs: tuple[window.Run, ...]
    last_error: str | None = None
    retry_after: float | None = None
    owner: str | None = None


@dataclass(frozen=True, slots=True)
class Acquire:
    """`owner` wants to call. In half_open it needs a lease, and gets one when there is a place."""

    owner: str


@dataclass(frozen=True, slots=True)
class Release:
    """`owner` gives its lease back without an outcome: its call was cancelled or says nothing."""

    owner: str


@dataclass(frozen=True, slots=True)
class Force:
    """By hand. `until` (seconds, the store's clock) ends a forced opening with a probe; None: never.

    "closed" closes the circuit, which then trips as usual; its next opening lasts as long as it would
    have. "disabled" lets everything through and counts nothing.
    """

    state: Literal["forced_open", "closed", "disabled"]
    reason: str
    until: float | None = None


@dataclass(frozen=True, slots=True)
class Reset:
    """Closed, as on the first day: windows, counters and re-openings are forgotten."""

    reason: str = "reset"


@dataclass(frozen=True, slots=True)
class Tick:
    """Nothing but time passed."""


Event = Record | Acquire | Release | Force | Reset | Tick


@dataclass(frozen=True, slots=True)
class Change:
    """One change of state; `Transition` without the circuit's name."""

    before: CircuitState
    after: CircuitState
    at: float
    reason: str
    generation: int
    retry_at: float | None
    last_error: str | None


@dataclass(frozen=True, slots=True)
class Refusal:
    """A call may not be made; in `retry_in` seconds it may ask again, None: after a person did."""

    retry_in: float | None


def step(
    document: CircuitDocument, event: Event, now: float, policy: CircuitPolicy
) -> tuple[CircuitDocument, tuple[Change, ...]]:
    """The document after `event` at the time `now`, and the changes of state it brought about, in order.

    `document` comes from `new()`, `read()` or an earlier step, and is not changed. When nothing happened
    the result equals it.
    """
    after: CircuitDocument = {**document, "leases": dict(document["leases"])}
    changes: list[Change] = []
    _follow_clock(after, now, policy)
    match event:
        case Record():
            _record(after, event, now, policy, changes)
        case Acquire():
            _let_time_open(after, now, changes)
            if after["state"] == "half_open" and len(after["leases"]) < policy.probes:
                after["leases"].setdefault(event.owner, [now, now + policy.probe_lease])
        case Release():
            after["leases"].pop(event.owner, None)
        case Force():
            _force(after, event, now, changes)
        case Reset():
            _force(after, Force("closed", event.reason), now, changes)
            after.update(openings=0, opened_at=None, last_error=None, baseline=None)
        case _:  # a Tick: nothing but time passed
            _let_time_open(after, now, changes)
    if after != document:
        after["updated_at"] = now
    return after, tuple(changes)


def refusal(document: CircuitDocument, owner: str, now: float) -> Refusal | None:
    """None when `owner` may call, as the document stands after its Acquire; else how long to wait."""
    if document["state"] in PASSING:
        return None
    if document["state"] == "half_open" and owner in document["leases"]:
        return None
    if document["state"] == "half_open":
        ends = [until for _, until in document["leases"].values()]
        return Refusal(max(0.0, min(ends, default=now) - now))
    retry_at = document["retry_at"]
    return Refusal(None if retry_at is None else max(0.0, retry_at - now))


def _follow_clock(doc: CircuitDocument, now: float, policy: CircuitPolicy) -> None:
    """Free expired leases; and when the clock was set back, let what was running end as far from now.

    Nor is a document believed that lets an opening or a lease last longer than the policy does: whatever
    wrote it, the circuit would refuse calls for as long.
    """
    leases: dict[str, list[float]] = {}
    for owner, (since, until) in doc["leases"].items():
        begun, ends = (now, now + until - since) if since > now else (since, until)
        if ends > now:
            leases[owner] = [begun, min(ends, now + policy.probe_lease)]
    doc["leases"] = leases
    if doc["state"] == "open":
        began = now if doc["opened_at"] is None else doc["opened_at"]
        if began > now:
            doc["retry_at"] = now + max(0.0, doc["retry_at"] - began)
            began = now
        latest = max(began + _longest_opening(policy), _quiet_until(doc, began))
        doc.update(opened_at=began, retry_at=min(doc["retry_at"], latest))


def _let_time_open(doc: CircuitDocument, now: float, changes: list[Change]) -> None:
    retry_at = doc["retry_at"]
    if doc["state"] in {"open", "forced_open"} and retry_at is not None and retry_at <= now:
        doc.update(successes=0, slow_successes=0, probe_failures=0, retry_at=None)
        _move(doc, "half_open", now, "its time is up", changes)


def _record(
    doc: CircuitDocument, event: Record, now: float, policy: CircuitPolicy, changes: list[Change]
) -> None:
    if event.owner is not None:
        doc["leases"].pop(event.owner, None)
    if event.generation != doc["generation"] or doc["state"] not in {"closed", "half_open"}:
        return
    if event.last_error is not None:
        doc["last_error"] = event.last_error[:TEXT_LIMIT]
    judge = _judge_call if doc["state"] == "closed" else _judge_probe
    for outcome, number in event.runs:
        if number < 1:
            continue
        if event.retry_after is not None and outcome in "fF":
            doc["hold_until"] = now + min(max(0.0, event.retry_after), RETRY_AFTER_LIMIT)
        judge(doc, (outcome, number), now, policy, changes)
        if changes:
            # The rest began before this change, and does not count.
            return


def _judge_call(
    doc: CircuitDocument, run: window.Run, now: float, policy: CircuitPolicy, changes: list[Change]
) -> None:
    outcome, number = run
    _count(doc, run, now, policy)
    failed = outcome in "fF"
    doc["failures_in_row"] = doc["failures_in_row"] + number if failed else 0
    if not failed:
        doc["hold_until"] = None
    usual = document.usual(doc["baseline"], policy.failure_rate) if policy.adaptive else None
    why = _why_open(doc, usual, now, policy)
    if why is None:
        if not failed and doc["openings"]:
            # Only so many calls later has it fully recovered: a few lucky probes prove little.
            doc["successes"] += number
            if doc["successes"] >= policy.minimum_calls:
                doc.update(openings=0, successes=0)
        return
    if policy.adaptive and usual is None:
        # Else a service that usually fails more than the fixed thresholds allow would never be known.
        _learn(doc, window.sums(doc["window"]), now, policy)
    _open(doc, now, policy, why, changes)


def _why_open(doc: CircuitDocument, usual: float | None, now: float, policy: CircuitPolicy) -> str | None:
    seen = window.totals(doc["window"], now)
    in_row = doc["failures_in_row"] >= document.row_needed(policy.failure_threshold, usual)
    # The call that is judged is one, whatever a clock that was set back says of the window.
    if in_row and max(seen.calls, 1) >= window.least(policy.volume_threshold, policy.window_size):
        return f"{doc['failures_in_row']} failures in a row"
    if seen.calls < window.least(policy.minimum_calls, policy.window_size):
        return None
    if _too_many(seen, usual, policy):
        return f"{seen.failures} of {seen.calls} calls failed"
    if policy.slow_call is not None and seen.slow >= policy.slow_rate * seen.calls:
        return f"{seen.slow} of {seen.calls} calls were slow"
    return None


def _count(doc: CircuitDocument, run: window.Run, now: float, policy: CircuitPolicy) -> None:
    """Add a run to the window; what leaves the window by that is learnt where the circuit is adaptive."""
    before = window.sums(doc["window"]) if window.fits(doc["window"], policy.window_size) else (0, 0, 0)
    doc["window"] = window.record(doc["window"], policy.window_size, (run,), now)
    if not policy.adaptive:
        return
    outcome, number = run
    after = window.sums(doc["window"])
    failures = number if outcome in "fF" else 0
    _learn(doc, (before[0] + number - after[0], before[1] + failures - after[1], 0), now, policy)


def _learn(doc: CircuitDocument, seen: tuple[int, int, int], now: float, policy: CircuitPolicy) -> None:
    if seen[0]:
        doc["baseline"] = document.learn(doc["baseline"], seen[0], seen[1], now, policy.baseline_memory)


def _too_many(seen: window.Totals, usual: float | None, policy: CircuitPolicy) -> bool:
    if usual is None:
        return seen.failures >= policy.failure_rate * seen.calls
    return document.is_rise(seen.failures, seen.calls, usual, policy.failure_rate_floor)


def _judge_probe(
    doc: CircuitDocument, run: window.Run, now: float, policy: CircuitPolicy, changes: list[Change]
) -> None:
    outcome, number = run
    if outcome in "fF":
        doc["failures_in_row"] += number
        doc["probe_failures"] += number
        if not _is_patient(doc, now, policy):
            failed, probes = doc["probe_failures"], doc["probe_failures"] + doc["successes"]
            why = "a probe failed" if probes == 1 else f"{failed} of {probes} probes failed"
            _open_again(doc, now, policy, why, changes, answered=doc["successes"] > 0)
        return
    doc["successes"] += number
    doc["slow_successes"] += number if outcome == "S" else 0
    doc["hold_until"] = None
    if doc["successes"] < policy.success_threshold:
        return
    if policy.slow_call is not None and doc["slow_successes"] >= policy.slow_rate * doc["successes"]:
        _open_again(doc, now, policy, "its probes were slow", changes, answered=False)
    else:
        _close(doc, now, "it has recovered", changes)


def _is_patient(doc: CircuitDocument, now: float, policy: CircuitPolicy) -> bool:
    """Whether another probe may be made after the failed ones."""
    if doc["hold_until"] is not None and doc["hold_until"] > now:
        return False  # the server asked for quiet
    if doc["unanswered"] and not doc["successes"]:
        return False
    usual = document.usual(doc["baseline"], policy.failure_rate) if policy.adaptive else None
    probes = document.probes_needed(policy.success_threshold, policy.most_probes, usual)
    return doc["probe_failures"] <= probes - policy.success_threshold


def _open_again(
    doc: CircuitDocument,
    now: float,
    policy: CircuitPolicy,
    reason: str,
    changes: list[Change],
    answered: bool,
) -> None:
    """Open after probes. If the service `answered` some of them, the next look at it comes soon."""
    openings = doc["openings"]
    _open(doc, now, policy, reason, changes, soon=answered or openings == 1)
    doc["unanswered"] = int(not answered)
    if answered:
        doc["openings"] = openings


def _open(
    doc: CircuitDocument,
    now: float,
    policy: CircuitPolicy,
    reason: str,
    changes: list[Change],
    soon: bool = False,
) -> None:
    """Open for `open_for`, longer for every re-opening, and for as long as the server asked."""
    longer = min(max(0, doc["openings"] - 1), EXPONENT_LIMIT)
    growth = SECOND_LOOK if soon else policy.open_backoff**longer
    lasts = min(policy.open_for * growth, _longest_opening(policy))
    retry_at = max(now + lasts, _quiet_until(doc, now))
    # Closed by lucky probes, and open again: it gets no more patience than after failed ones.
    doc.update(successes=0, probe_failures=0, unanswered=int(doc["openings"] > 0))
    doc.update(openings=doc["openings"] + 1, opened_at=now, retry_at=retry_at)
    _move(doc, "open", now, reason, changes)


def _longest_opening(policy: CircuitPolicy) -> float:
    # A first opening that is longer than open_max was meant: the maximum bounds what grows.
    return max(policy.open_max, policy.open_for)


def _quiet_until(doc: CircuitDocument, began: float) -> float:
    """Until when the server wants no calls; bounded, in case the clock was set back since it asked."""
    return min(doc["hold_until"] or 0.0, began + RETRY_AFTER_LIMIT)


def _close(doc: CircuitDocument, now: float, reason: str, changes: list[Change]) -> None:
    doc.update(failures_in_row=0, successes=0, slow_successes=0, probe_failures=0, unanswered=0)
    doc.update(window=None, retry_at=None, hold_until=None)
    _move(doc, "closed", now, reason, changes)


def _force(doc: CircuitDocument, event: Force, now: float, changes: list[Change]) -> None:
    reason = event.reason[:TEXT_LIMIT]
    if event.state == "closed":
        generation = doc["generation"] + 1
        _close(doc, now, reason, changes)
        # What is under way is fenced, even where the state stays the same.
        doc["generation"] = generation
    else:
        forced_open = event.state == "forced_open"
        doc.update(opened_at=now if forced_open else None, retry_at=event.until if forced_open else None)
        doc.update(hold_until=None, last_error=None)
        _move(doc, event.state, now, reason, changes)
    doc["reason"] = reason
    remember(doc, now)


def _move(doc: CircuitDocument, after: CircuitState, now: float, reason: str, changes: list[Change]) -> None:
    """Enter a state: a new generation. Entering the same one again is no change.

    Probes that are still under way keep their leases through every state: until they end, they are among
    those that may be at the service in the next half-open period.
    """
    before: CircuitState = doc["state"]
    if before == after:
        return
    doc.update(state=after, generation=doc["generation"] + 1, reason=reason)
    remember(doc, now)
    changes.append(Change(before, after, now, reason, doc["generation"], doc["retry_at"], doc["last_error"]))
