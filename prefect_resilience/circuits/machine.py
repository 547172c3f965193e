"""The circuit as a pure function: `step(document, event, now, policy) -> (document, changes)`.

`document` is JSON, the only thing that a fleet shares about a circuit; `now` is the store's clock in
seconds. Nothing is read from anywhere else, and no argument is changed.

    closed ──failures──> open ──time──> half_open ──successes──> closed
                          ^                 │
                          └─────failure─────┘        forced_open, disabled: by hand

Every change of state begins a new generation. What was begun under an older one does not count (the
fence of gobreaker). In half_open each probe holds a lease of its own, with its owner and its expiry, so
that a prober that died frees its place.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, cast, get_args

from prefect_resilience.circuits import adaptive, window
from prefect_resilience.circuits.model import CircuitPolicy, CircuitState

CircuitDocument = dict[str, Any]

TEXT_LIMIT = 300
RETRY_AFTER_LIMIT = 86_400.0
"""A server may ask for a day of quiet; what it names beyond that is taken for a mistake."""

EXPONENT_LIMIT = 60
PASSING: tuple[CircuitState, ...] = ("closed", "disabled")
_STATES = get_args(CircuitState)


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
    """A call may not be made; `retry_in` seconds from now it may ask again, None: only after a person did."""

    retry_in: float | None


def new() -> CircuitDocument:
    """The document of a circuit that nobody has called yet."""
    return {
        "state": "closed",
        "generation": 1,
        "failures_in_row": 0,
        "successes": 0,
        "slow_successes": 0,
        "window": None,
        "baseline": None,
        "opened_at": None,
        "retry_at": None,
        "hold_until": None,
        "openings": 0,
        "leases": {},
        "reason": None,
        "last_error": None,
        "updated_at": 0.0,
    }


def step(
    document: CircuitDocument, event: Event, now: float, policy: CircuitPolicy
) -> tuple[CircuitDocument, tuple[Change, ...]]:
    """The document after `event` at the time `now`, and the changes of state it brought about, in order.

    `document` comes from `new()`, `read()` or an earlier step, and is not changed. When nothing happened
    the result equals it.
    """
    after: CircuitDocument = {**document, "leases": dict(document["leases"])}
    changes: list[Change] = []
    _follow_clock(after, now)
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
        case _:
            # A Tick: nothing but time passed.
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


def read(value: object) -> CircuitDocument:
    """A document as a store returned it; a new one when it is none, or not ours, or damaged."""
    document = cast("CircuitDocument", value) if isinstance(value, dict) else {}
    times = (document.get(key) for key in ("opened_at", "retry_at", "hold_until"))
    texts = (document.get(key) for key in ("reason", "last_error"))
    counts = (
        document.get(key)
        for key in ("generation", "failures_in_row", "successes", "slow_successes", "openings")
    )
    leases = document.get("leases")
    whole = (
        document.get("state") in _STATES
        and all(isinstance(count, int) for count in counts)
        and all(time is None or isinstance(time, int | float) for time in times)
        and all(text is None or isinstance(text, str) for text in texts)
        and isinstance(document.get("updated_at"), int | float)
        and isinstance(leases, dict)
        and all(_is_lease(lease) for lease in cast("dict[str, Any]", leases).values())
        and (document.get("window") is None or window.is_window(document["window"]))
        and (document.get("baseline") is None or adaptive.is_baseline(document["baseline"]))
        and (document["state"] != "open" or document.get("retry_at") is not None)
    )
    return {**new(), **document} if whole else new()


def _is_lease(value: object) -> bool:
    times = cast("list[Any]", value) if isinstance(value, list) else []
    return len(times) == 2 and all(isinstance(time, int | float) for time in times)


def _follow_clock(doc: CircuitDocument, now: float) -> None:
    """Free expired leases; and when the clock was set back, let what was running end as far from now."""
    leases: dict[str, list[float]] = {}
    for owner, (since, until) in doc["leases"].items():
        begun, ends = (now, now + until - since) if since > now else (since, until)
        if ends > now:
            leases[owner] = [begun, ends]
    doc["leases"] = leases
    if doc["state"] == "open" and doc["opened_at"] is not None and doc["opened_at"] > now:
        doc["retry_at"] = now + max(0.0, doc["retry_at"] - doc["opened_at"])
        doc["opened_at"] = now


def _let_time_open(doc: CircuitDocument, now: float, changes: list[Change]) -> None:
    retry_at = doc["retry_at"]
    if doc["state"] in {"open", "forced_open"} and retry_at is not None and retry_at <= now:
        doc.update(successes=0, slow_successes=0, retry_at=None)
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
    usual = adaptive.usual(doc["baseline"], policy.failure_rate) if policy.adaptive else None
    why = _why_open(doc, usual, now, policy)
    if why is None:
        return
    if policy.adaptive and usual is None:
        # Else a service that usually fails more than the fixed thresholds allow would never be known.
        _learn(doc, window.sums(doc["window"]), now, policy)
    _open(doc, now, policy, why, changes)


def _why_open(doc: CircuitDocument, usual: float | None, now: float, policy: CircuitPolicy) -> str | None:
    if doc["failures_in_row"] >= adaptive.row_needed(policy.failure_threshold, usual):
        return f"{doc['failures_in_row']} failures in a row"
    seen = window.totals(doc["window"], now)
    size = policy.window_size
    needed = min(policy.minimum_calls, size) if isinstance(size, int) else policy.minimum_calls
    if seen.calls < needed:
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
        doc["baseline"] = adaptive.learn(doc["baseline"], seen[0], seen[1], now, policy.baseline_memory)


def _too_many(seen: window.Totals, usual: float | None, policy: CircuitPolicy) -> bool:
    if usual is None:
        return seen.failures >= policy.failure_rate * seen.calls
    return adaptive.is_rise(seen.failures, seen.calls, usual, policy.failure_rate_floor)


def _judge_probe(
    doc: CircuitDocument, run: window.Run, now: float, policy: CircuitPolicy, changes: list[Change]
) -> None:
    outcome, number = run
    if outcome in "fF":
        doc["failures_in_row"] += number
        _open(doc, now, policy, "a probe failed", changes)
        return
    doc["successes"] += number
    doc["slow_successes"] += number if outcome == "S" else 0
    doc["hold_until"] = None
    if doc["successes"] < policy.success_threshold:
        return
    if policy.slow_call is not None and doc["slow_successes"] >= policy.slow_rate * doc["successes"]:
        _open(doc, now, policy, "its probes were slow", changes)
    else:
        _close(doc, now, "it has recovered", changes)
        doc["openings"] = 0


def _open(
    doc: CircuitDocument, now: float, policy: CircuitPolicy, reason: str, changes: list[Change]
) -> None:
    """Open for `open_for`, longer for every re-opening, and for as long as the server asked."""
    growth = policy.open_backoff ** min(doc["openings"], EXPONENT_LIMIT)
    # A first opening that is longer than open_max was meant: the maximum bounds what grows.
    lasts = min(policy.open_for * growth, max(policy.open_max, policy.open_for))
    # Bounded once more, in case the clock was set back since the server asked.
    quiet_until = min(doc["hold_until"] or 0.0, now + RETRY_AFTER_LIMIT)
    retry_at = max(now + lasts, quiet_until)
    doc.update(openings=doc["openings"] + 1, opened_at=now, retry_at=retry_at)
    _move(doc, "open", now, reason, changes)


def _close(doc: CircuitDocument, now: float, reason: str, changes: list[Change]) -> None:
    doc.update(failures_in_row=0, successes=0, slow_successes=0, window=None, retry_at=None, hold_until=None)
    _move(doc, "closed", now, reason, changes)


def _force(doc: CircuitDocument, event: Force, now: float, changes: list[Change]) -> None:
    reason = event.reason[:TEXT_LIMIT]
    if event.state == "closed":
        generation = doc["generation"] + 1
        _close(doc, now, reason, changes)
        # What is under way is fenced, even where the state stays the same.
        doc.update(reason=reason, generation=generation)
        return
    forced_open = event.state == "forced_open"
    doc["opened_at"] = now if forced_open else None
    doc["retry_at"] = event.until if forced_open else None
    doc.update(hold_until=None, last_error=None)
    _move(doc, event.state, now, reason, changes)
    doc["reason"] = reason


def _move(doc: CircuitDocument, after: CircuitState, now: float, reason: str, changes: list[Change]) -> None:
    """Enter a state: a new generation. Entering the same one again is no change.

    Probes that are still under way keep their leases through every state: until they end, they are among
    those that may be at the service in the next half-open period.
    """
    before: CircuitState = doc["state"]
    if before == after:
        return
    doc.update(state=after, generation=doc["generation"] + 1, reason=reason)
    changes.append(Change(before, after, now, reason, doc["generation"], doc["retry_at"], doc["last_error"]))
