"""Totals of this process: what `get_metrics` returns."""

from __future__ import annotations

import threading
from collections import Counter
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ResilienceMetrics:
    """What guarded calls of this process came to since it started.

    total_attempts: attempts that were made, however they ended. A rejected call is no attempt.
    successful_retries: calls that succeeded after at least one failed attempt.
    failed_retries: attempts after the first one that failed.
    rejected_calls: calls that a circuit or a limit did not let through.
    failures: calls that failed for good, without a fallback's answer.
    circuit_opens: openings of circuits that this process brought about, those by hand included.
    fallbacks_used: calls that a fallback answered.
    avg_recovery_time: seconds from the start of the first attempt to the success, on average over
        `successful_retries`; None while there is none.

    Example:
        >>> ResilienceMetrics(total_attempts=3, successful_retries=1, avg_recovery_time=1.5).failures
        0
    """

    total_attempts: int = 0
    successful_retries: int = 0
    failed_retries: int = 0
    rejected_calls: int = 0
    failures: int = 0
    circuit_opens: int = 0
    fallbacks_used: int = 0
    avg_recovery_time: float | None = None


class Totals:
    """Counters that threads may share."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._recovering = 0.0
        self._lock = threading.Lock()

    def add(self, name: str) -> None:
        with self._lock:
            self._counts[name] += 1

    def recovered(self, seconds: float) -> None:
        with self._lock:
            self._counts["successful_retries"] += 1
            self._recovering += seconds

    def read(self) -> ResilienceMetrics:
        with self._lock:
            recovered = self._counts["successful_retries"]
            average = self._recovering / recovered if recovered else None
            return ResilienceMetrics(**self._counts, avg_recovery_time=average)


totals: Totals = Totals()


def get_metrics() -> ResilienceMetrics:
    """The totals of this process, for a health page or a test; no OpenTelemetry SDK is needed.

    A worker runs each flow run in a process of its own: for a fleet see the metrics through OpenTelemetry
    and `prefect-resilience report`.
    """
    return totals.read()
