"""Totals of the guarded calls inside a flow run, for each function.

10,000 calls in one task would be 10,000 events. Instead, one event says how many calls, attempts, rejections
and fallbacks there were since the last one. It is sent when something went wrong: at the end of the run's
tasks and flows, and at the end of the process.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any
from uuid import UUID, uuid4

from prefect_resilience.base.process import at_exit, per_process
from prefect_resilience.telemetry import notes
from prefect_resilience.telemetry.edge.events import current_pass, happening_of, send_event
from prefect_resilience.telemetry.model import CALL_COUNTS, CALLS_COUNTED
from prefect_resilience.telemetry.payloads import NAME, fit, fit_text, tell

MOST = 2_000
"""The most functions whose totals are kept. The least recently used are sent and dropped."""

Place = tuple[UUID, int, str]
"""A flow run, its run count, and a function."""


@dataclass(slots=True)
class CallTotals:
    """The calls of one function in one pass of a flow run, since the last event."""

    place: Place
    counts: dict[str, float] = field(default_factory=lambda: dict.fromkeys(CALL_COUNTS, 0))
    last_error: str | None = None
    remarkable: bool = False
    """Whether anything went wrong in this pass. Without that, nothing is sent."""
    lock: threading.Lock = field(default_factory=threading.Lock)

    def good(self) -> None:
        """Count a call whose first attempt succeeded."""
        with self.lock:
            self.counts["calls"] += 1
            self.counts["attempts"] += 1

    def add(self, *names: str, waited: float = 0.0, error: str | None = None) -> None:
        """Count one for each of these names, and the seconds of a delay."""
        with self.lock:
            for name in names:
                self.counts[name] += 1
            self.counts["waited"] += waited
            if error is not None:
                self.last_error, self.remarkable = error, True
                all_totals.is_due = True

    def take_payload(self) -> dict[str, Any] | None:
        """The payload of the next event; None if there is nothing to send. The counts begin again."""
        with self.lock:
            if not (self.remarkable and any(self.counts.values())):
                return None
            payload: dict[str, Any] = {**self.counts, "waited": round(self.counts["waited"], 3)}
            if self.last_error is not None:
                payload["last_error"] = self.last_error
            self.counts = dict.fromkeys(CALL_COUNTS, 0)
            self.last_error = None
            return payload


class AllTotals:
    """The totals of this process. `is_due`: something went wrong since they were sent."""

    def __init__(self) -> None:
        self.lock: threading.Lock = threading.Lock()
        self.by_place: OrderedDict[Place, CallTotals] = OrderedDict()
        self.is_due: bool = False

    def of(self, place: Place) -> CallTotals:
        with self.lock:
            totals = self.by_place.get(place)
            if totals is None:
                totals = self.by_place[place] = CallTotals(place)
            dropped = self.by_place.popitem(last=False)[1] if len(self.by_place) > MOST else None
        if dropped is not None:
            _send(dropped)
        return totals


all_totals: AllTotals = per_process(AllTotals)


def totals_here(function: str) -> CallTotals | None:
    """The totals of a function in the current flow run; None outside of flow runs."""
    current = current_pass()
    if current is None:
        return None
    place = (*current, function)
    return all_totals.by_place.get(place) or all_totals.of(place)


def send_totals(*, ended: UUID | None = None) -> None:
    """Send what is not sent yet. Never raises. The totals of the flow run `ended` are forgotten."""
    all_totals.is_due = False
    with all_totals.lock:
        unsent = [*all_totals.by_place.values()]
        for totals in unsent:
            if totals.place[0] == ended:
                del all_totals.by_place[totals.place]
    for totals in unsent:
        _send(totals)


def _send(totals: CallTotals) -> None:
    payload = totals.take_payload()
    if payload is None:
        return
    flow_run_id, count, function = totals.place
    shown, event_id = fit_text(function, NAME), uuid4()
    event_payload = fit(payload)
    notes.note_event(
        str(flow_run_id), happening_of(str(event_id), time.time(), CALLS_COUNTED, shown, event_payload), count
    )
    send_event(
        CALLS_COUNTED, f"calls.{shown}", shown, event_payload, event_id, related={"flow-run": flow_run_id}
    )
    tell(CALLS_COUNTED, "calls", shown, event_payload)


@at_exit
def _leave() -> None:
    if all_totals.by_place:
        from prefect.settings import get_current_settings

        if get_current_settings().api.url is not None:  # else a server that ends with this process
            send_totals()
