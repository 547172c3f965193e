"""The circuit as a pure function: `step(document, event, now, policy) -> (document, changes)`.

`document` is JSON, the only state that a fleet shares about a circuit; `now` is the store's clock in
seconds. `step` reads nothing else and changes no argument.

    closed ──failures──> open ──time──> half_open ──successes──> closed
                          ^                 │
                          └────failures─────┘        forced_open, disabled: by hand

In half_open, `success_threshold` successes among at most `most_probes` probes close the circuit. It opens
again once they are out of reach. Some probes may fail, because a few calls of a working service may always
fail. If no probe of the previous half-open period succeeded, a failed probe opens the circuit at once unless
one has succeeded before it.

Every change of state begins a new generation. Calls that began under an older one do not count (the
fence of gobreaker). In half_open each probe holds its own lease, with an owner and an expiry, so that
the place of a crashed prober becomes free.
"""

from __future__ import annotations

from typing import Literal, NamedTuple

from prefect_resilience.guards.circuits import document, window
from prefect_resilience.guards.circuits.document import CircuitDocument, remember
from prefect_resilience.guards.circuits.document import new as new
from prefect_resilience.guards.circuits.document import read as read
from prefect_resilience.guards.circuits.listeners import Transition as Transition
from prefect_resilience.guards.circuits.model import CircuitPolicy, CircuitState

TEXT_LIMIT = 300
RETRY_AFTER_LIMIT = 86_400.0
"""The longest accepted Retry-After, in seconds: one day. A longer one is treated as a mistake and cut."""
EXPONENT_LIMIT = 60
SECOND_LOOK = 0.5
"""The first re-opening, and any re-opening after some successful probes, lasts this share of `open_for`."""
PASSING: tuple[CircuitState, ...] = ("closed", "disabled")


class Record(NamedTuple):
    """Calls that have ended, in their order, and the generation under which they began.

    `owner` is the owner of a probe's lease, which this record gives back. `retry_after` is the longest
    delay in seconds that the server asked for with these failures.
    """

    generation: int
    runs: tuple[window.Run, ...]
    last_error: str | None = None
    retry_after: float | None = None
    owner: str | None = None


class Acquire(NamedTuple):
    """`owner` wants to call. In half_open it needs a lease, and gets one when there is a free place."""

    owner: str


class Release(NamedTuple):
    """`owner` gives its lease back without an outcome: its call was cancelled or does not count."""

    owner: str


class Force(NamedTuple):
    """An operator's command. A forced opening ends with a probe at `until` (seconds, the store's clock);
    None: it does not end by itself.

    "closed" closes the circuit, which can then open as usual; re-openings are not forgotten, so the next
    opening is as long as without the command. "disabled" lets every call through and counts nothing.
    """

    state: Literal["forced_open", "closed", "disabled"]
    reason: str
    until: float | None = None


class Reset(NamedTuple):
    """Close the circuit and forget its windows, counters, re-openings and baseline."""

    reason: str = "reset"


class Tick(NamedTuple):
    """Nothing but time passed."""


Event = Record | Acquire | Release | Force | Reset | Tick


def step(
    document: CircuitDocument, event: Event, now: float, policy: CircuitPolicy
) -> tuple[CircuitDocument, tuple[Transition, ...]]:
    """The document after `event` at the time `now`, and the changes of state that it caused, in order.

    `document` comes from `new()`, `read()` or an earlier step, and is not modified. Without any effect the
    result equals `document`.
    """
    after: CircuitDocument = {**document, "leases": dict(document["leases"])}
    changes = _Step(after, now, policy).take(event)
    if after != document:
        after["updated_at"] = now
    return after, tuple(changes)


class _Step:
    """One event, applied to a copy of the document; collects the changes of state."""

    def __init__(self, doc: CircuitDocument, now: float, policy: CircuitPolicy) -> None:
        self.doc = doc
        self.now = now
        self.policy = policy
        self.changes: list[Transition] = []

    def take(self, event: Event) -> list[Transition]:
        self._follow_clock()
        match event:
            case Record():
                self._record(event)
            case Acquire():
                self._end_opening()
                if self.doc["state"] == "half_open" and len(self.doc["leases"]) < self.policy.probes:
                    lease = [self.now, self.now + self.policy.probe_lease]
                    self.doc["leases"].setdefault(event.owner, lease)
            case Release():
                self.doc["leases"].pop(event.owner, None)
            case Force():
                self._force(event)
            case Reset():
                self._force(Force("closed", event.reason))
                self.doc.update(openings=0, opened_at=None, last_error=None, baseline=None)
            case Tick():
                self._end_opening()
        return self.changes

    def _follow_clock(self) -> None:
        """Free expired leases. If the clock was set back, openings and leases begin now.

        Cut an opening or a lease that lasts longer than the policy allows: otherwise a wrong document
        could stop all calls for that long. An operator's opening has no such limit.
        """
        doc, now = self.doc, self.now
        leases: dict[str, list[float]] = {}
        for owner, (since, until) in doc["leases"].items():
            begun, ends = (now, now + until - since) if since > now else (since, until)
            if ends > now:
                leases[owner] = [begun, min(ends, now + self.policy.probe_lease)]
        doc["leases"] = leases
        if doc["state"] in {"open", "forced_open"} and doc["retry_at"] is not None:
            began = now if doc["opened_at"] is None else doc["opened_at"]
            if began > now:
                doc["retry_at"] = now + max(0.0, doc["retry_at"] - began)
                began = now
            doc["opened_at"] = began
            if doc["state"] == "open":
                latest = max(began + self._longest_opening(), self._quiet_until(began))
                doc["retry_at"] = min(doc["retry_at"], latest)

    def _end_opening(self) -> None:
        """Go from open to half-open if the open period has elapsed."""
        doc, retry_at = self.doc, self.doc["retry_at"]
        if doc["state"] in {"open", "forced_open"} and retry_at is not None and retry_at <= self.now:
            doc.update(successes=0, slow_successes=0, probe_failures=0, retry_at=None)
            self._move("half_open", "open period elapsed; waiting for a probe")

    def _record(self, event: Record) -> None:
        doc = self.doc
        if event.owner is not None:
            doc["leases"].pop(event.owner, None)
        if event.generation != doc["generation"] or doc["state"] not in {"closed", "half_open"}:
            return
        if event.last_error is not None:
            doc["last_error"] = event.last_error[:TEXT_LIMIT]
        judge = self._judge_calls if doc["state"] == "closed" else self._judge_probes
        for outcome, number in event.runs:
            if number < 1:
                continue
            if event.retry_after is not None and outcome in "fF":
                doc["hold_until"] = self.now + min(max(0.0, event.retry_after), RETRY_AFTER_LIMIT)
            judge((outcome, number))
            if self.changes:
                # The other calls began before this change, so they do not count.
                return

    def _judge_calls(self, run: window.Run) -> None:
        """Count calls of a closed circuit, and open it if there are too many failures."""
        doc, (outcome, number) = self.doc, run
        self._count(run)
        failed = outcome in "fF"
        doc["failures_in_row"] = doc["failures_in_row"] + number if failed else 0
        if not failed:
            doc["hold_until"] = None
        usual = self._usual()
        why = self._why_open(usual)
        if why is None:
            if not failed and doc["openings"]:
                # A few successful probes prove little: full recovery takes `minimum_calls` successes.
                doc["successes"] += number
                if doc["successes"] >= self.policy.minimum_calls:
                    doc.update(openings=0, successes=0)
            return
        if self.policy.adaptive and usual is None:
            # Otherwise a service that usually fails more often than the fixed thresholds allow would never
            # get a baseline.
            self._learn(*window.sums(self.doc["window"])[:2])
        self._open(why)

    def _usual(self) -> float | None:
        policy = self.policy
        return document.usual(self.doc["baseline"], policy.failure_rate) if policy.adaptive else None

    def _why_open(self, usual: float | None) -> str | None:
        doc, policy = self.doc, self.policy
        totals, size = window.totals(doc["window"], self.now), window.size_of(doc["window"])
        in_row = doc["failures_in_row"] >= document.row_needed(policy.failure_threshold, usual)
        # There was at least one call, even if a clock that was set back emptied the window.
        if in_row and max(totals.calls, 1) >= window.least(policy.volume_threshold, size):
            return f"{doc['failures_in_row']} failures in a row"
        if totals.calls < window.least(policy.minimum_calls, size):
            return None
        if usual is None:
            too_many = totals.failures >= policy.failure_rate * totals.calls
        else:
            too_many = document.is_rise(totals.failures, totals.calls, usual, policy.failure_rate_floor)
        if too_many:
            return f"{totals.failures} of {totals.calls} calls failed"
        if policy.slow_call is not None and totals.slow >= policy.slow_rate * totals.calls:
            return f"{totals.slow} of {totals.calls} calls were slow"
        return None

    def _count(self, run: window.Run) -> None:
        """Add a run to the window. An adaptive circuit learns from the calls that leave it."""
        before = window.sums(self.doc["window"])
        self.doc["window"] = window.record_shared(
            self.doc["window"], self.policy.window_size, (run,), self.now
        )
        if self.policy.adaptive:
            outcome, number = run
            after = window.sums(self.doc["window"])
            failures = number if outcome in "fF" else 0
            self._learn(before[0] + number - after[0], before[1] + failures - after[1])

    def _learn(self, calls: int, failures: int) -> None:
        if calls:
            memory = self.policy.baseline_memory
            self.doc["baseline"] = document.learn(self.doc["baseline"], calls, failures, self.now, memory)

    def _judge_probes(self, run: window.Run) -> None:
        """Count probes of a half-open circuit, and close or open it if they decide that."""
        doc, policy, (outcome, number) = self.doc, self.policy, run
        if outcome in "fF":
            doc["failures_in_row"] += number
            doc["probe_failures"] += number
            if not self._is_patient():
                failed, probes = doc["probe_failures"], doc["probe_failures"] + doc["successes"]
                why = "a probe failed" if probes == 1 else f"{failed} of {probes} probes failed"
                self._open_again(why, answered=doc["successes"] > 0)
            return
        doc["successes"] += number
        doc["slow_successes"] += number if outcome == "S" else 0
        doc["hold_until"] = None
        if doc["successes"] < policy.success_threshold:
            return
        if policy.slow_call is not None and doc["slow_successes"] >= policy.slow_rate * doc["successes"]:
            self._open_again("the probes were slow", answered=False)
        else:
            self._close("the service has recovered")

    def _is_patient(self) -> bool:
        """Whether another probe may be made after the failed ones."""
        doc, policy = self.doc, self.policy
        if doc["hold_until"] is not None and doc["hold_until"] > self.now:
            return False  # the server asked for quiet
        if doc["unanswered"] and not doc["successes"]:
            return False
        probes = document.probes_needed(policy.success_threshold, policy.most_probes, self._usual())
        return doc["probe_failures"] <= probes - policy.success_threshold

    def _open_again(self, reason: str, answered: bool) -> None:
        """Open after probes. If the service `answered` some of them, the next probe comes soon."""
        openings = self.doc["openings"]
        self._open(reason, soon=answered or openings == 1)
        self.doc["unanswered"] = int(not answered)
        if answered:
            self.doc["openings"] = openings

    def _open(self, reason: str, soon: bool = False) -> None:
        """Open for `open_for`, longer for every re-opening, and for as long as the server asked."""
        doc, policy = self.doc, self.policy
        longer = min(max(0, doc["openings"] - 1), EXPONENT_LIMIT)
        growth = SECOND_LOOK if soon else policy.open_backoff**longer
        lasts = min(policy.open_for * growth, self._longest_opening())
        retry_at = max(self.now + lasts, self._quiet_until(self.now))
        # A circuit that closed without a full recovery is treated like one that stayed open.
        doc.update(successes=0, probe_failures=0, unanswered=int(doc["openings"] > 0))
        doc.update(openings=doc["openings"] + 1, opened_at=self.now, retry_at=retry_at)
        self._move("open", reason)

    def _longest_opening(self) -> float:
        # `open_max` bounds only the growth: a first opening may be longer.
        return max(self.policy.open_max, self.policy.open_for)

    def _quiet_until(self, began: float) -> float:
        """The end of the server's Retry-After; bounded, in case the clock was set back in the meantime."""
        return min(self.doc["hold_until"] or 0.0, began + RETRY_AFTER_LIMIT)

    def _close(self, reason: str) -> None:
        self.doc.update(failures_in_row=0, successes=0, slow_successes=0, probe_failures=0, unanswered=0)
        self.doc.update(window=None, retry_at=None, hold_until=None)
        self._move("closed", reason)

    def _force(self, event: Force) -> None:
        doc, reason = self.doc, event.reason[:TEXT_LIMIT]
        if event.state == "closed":
            generation = doc["generation"] + 1
            self._close(reason)
            # A new generation excludes the calls in flight, even if the state stays the same.
            doc["generation"] = generation
        else:
            forced_open = event.state == "forced_open"
            doc["opened_at"], doc["retry_at"] = (self.now, event.until) if forced_open else (None, None)
            doc.update(hold_until=None, last_error=None)
            self._move(event.state, reason)
        doc["reason"] = reason
        remember(doc, self.now)

    def _move(self, after: CircuitState, reason: str) -> None:
        """Enter a state and begin a new generation. Entering the same state again is no change.

        Probes in flight keep their leases through every state. Until they end, they take places of
        the next half-open period.
        """
        doc, now = self.doc, self.now
        before: CircuitState = doc["state"]
        if before == after:
            return
        generation = doc["generation"] + 1
        doc.update(state=after, generation=generation, reason=reason)
        remember(doc, now)
        change = Transition(before, after, now, reason, generation, doc["retry_at"], doc["last_error"])
        self.changes.append(change)
