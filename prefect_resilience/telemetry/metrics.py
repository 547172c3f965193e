"""Metrics through OpenTelemetry's API. Without an SDK they cost next to nothing and are not exported.

Counters (Prometheus appends `_total`), all under `prefect_resilience.`:

    `attempts`             {attempt}     task, outcome (success, failure), category (of a failure)
    `retries`              {retry}       task, category
    `recoveries`           {run}         task, category: succeeded after a failed attempt
    `failures`             {run}         task, category: failed for good, without a fallback
    `fallbacks`            {run}         task, category, degraded
    `refusals`             {call}        task, by (circuit, bulkhead, adaptive_limit, rate_limit, deadline):
                                         rejected
    `circuit.transitions`  {transition}  circuit, from, to
    `circuit.opens`        {opening}     circuit
    `effects.replayed`     {effect}      task
    `effects.in_doubt`     {effect}      task
    `dead_letters.created`   {letter}    task, category
    `dead_letters.replayed`  {letter}    task, result
    `batches.recovered`    {batch}       outcome
    `budget.burns`         {burn}        budget
    `caps.reached`         {cap}         cap
    `deadlines.exceeded`   {call}        task
    `runs.parked`          {parking}     flow
    `runs.woken`           {waking}      flow: a parked run that began again
    `runs.stranded`        {run}         flow: a parked run that nothing would have woken

For nodes of plans, attempts, retries, recoveries, failures, fallbacks and `refusals` also have `action`, the
node's type. There is one histogram: `recovery.duration` (s), from the start of a run's first attempt to
its success, by task and category. Names of tasks and circuits contain no secrets. Circuits may be named after
parameters, so only the first MOST_NAMES names of a kind are kept; all further names become "other".
"""

from __future__ import annotations

import functools
import os
import sys
import threading
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from uuid import uuid4

from prefect_resilience.errors.context import name_rejecting_guard
from prefect_resilience.telemetry.payloads import Whole, fit_text, tell

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics import MeterProvider


@dataclass(frozen=True, slots=True)
class ResilienceMetrics:
    """The totals of the guarded calls of this process since it started.

    total_attempts: attempts that were made, successful or not. A rejected call is not an attempt.
    successful_retries: calls that succeeded after at least one failed attempt.
    failed_retries: attempts after the first one that failed.
    rejected_calls: calls that a circuit or a limit rejected.
    failures: calls that failed for good, without a fallback.
    circuit_opens: how often this process opened a circuit, or forced it open.
    fallbacks_used: calls answered by a fallback.
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


class ProcessTotals:
    """Thread-safe counters."""

    def __init__(self) -> None:
        self._counts: Counter[str] = Counter()
        self._recovering = 0.0
        self._lock = threading.Lock()

    def add(self, name: str) -> None:
        with self._lock:
            self._counts[name] += 1

    def count_recovery(self, seconds: float) -> None:
        with self._lock:
            self._counts["successful_retries"] += 1
            self._recovering += seconds

    def read(self) -> ResilienceMetrics:
        with self._lock:
            recovered = self._counts["successful_retries"]
            average = self._recovering / recovered if recovered else None
            return ResilienceMetrics(**self._counts, avg_recovery_time=average)


totals: ProcessTotals = ProcessTotals()


def get_metrics() -> ResilienceMetrics:
    """The totals of this process, for a health page or a test. No OpenTelemetry SDK is needed.

    A worker runs each flow run in its own process. For a fleet, use the OpenTelemetry metrics or
    `prefect-resilience report`.
    """
    return totals.read()


METER = "prefect_resilience"
DURATION = "recovery.duration"
MOST_NAMES = 200
LONGEST_NAME = 120
OTHER = "other"
SECONDS = (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600, 1800, 3600)
"""Upper bounds of the histogram's buckets, from a quick retry to a long outage."""

COUNTERS = {
    "attempts": ("{attempt}", "Attempts, by outcome"),
    "retries": ("{retry}", "Retries scheduled after a failed attempt"),
    "recoveries": ("{run}", "Task runs that succeeded after a failed attempt"),
    "failures": ("{run}", "Task runs that failed for good"),
    "fallbacks": ("{run}", "Task runs answered by a fallback"),
    "refusals": ("{call}", "Calls rejected by a circuit or a limit"),
    "circuit.transitions": ("{transition}", "Changes of a circuit's state"),
    "circuit.opens": ("{opening}", "Openings of a circuit, including forced ones"),
    "effects.replayed": ("{effect}", "Effects replayed from the ledger instead of repeated"),
    "effects.in_doubt": ("{effect}", "Effects with an unknown outcome"),
    "dead_letters.created": ("{letter}", "Calls stored as dead letters"),
    "dead_letters.replayed": ("{letter}", "Dead letters that were replayed"),
    "batches.recovered": ("{batch}", "Recoveries of batches"),
    "deadlines.exceeded": ("{call}", "Calls that ended because a deadline passed"),
    "budget.burns": ("{burn}", "Error budgets that began to burn too fast"),
    "caps.reached": ("{cap}", "Spending caps that were reached"),
    "runs.parked": ("{parking}", "Flow runs that parked for a long wait"),
    "runs.woken": ("{waking}", "Parked flow runs that began again"),
    "runs.stranded": ("{run}", "Parked flow runs that nothing would have woken"),
}

Payload = dict[str, Any]


_labels: dict[str, dict[str, str]] = {}
_labels_lock = threading.Lock()


def label_of(kind: str, name: Any, most: int = MOST_NAMES) -> str:
    """The attribute value for a name of this kind: without secrets, and one of at most `most` values."""
    if not isinstance(name, str):
        return OTHER
    labels = _labels.setdefault(kind, {})
    if name in labels:
        return labels[name]
    with _labels_lock:
        return labels.setdefault(name, fit_text(name, LONGEST_NAME)) if len(labels) < most else OTHER


@functools.cache
def instruments() -> dict[str, Any]:
    """The instruments of this process, created at the first measurement."""
    # Imported late: with OTEL_PYTHON_METER_PROVIDER in the environment this imports an SDK.
    from opentelemetry import metrics

    meter = metrics.get_meter(METER)
    about = "From the start of a run's first attempt to its success, if the first attempt failed"
    duration = meter.create_histogram(
        f"{METER}.{DURATION}", "s", about, explicit_bucket_boundaries_advisory=SECONDS
    )
    counters = {name: meter.create_counter(f"{METER}.{name}", *row) for name, row in COUNTERS.items()}
    return {**counters, DURATION: duration}


_IN_ENVIRONMENT = "OTEL_PYTHON_METER_PROVIDER" in os.environ
"""Whether the environment names an SDK, which OpenTelemetry's API then imports."""
_PROXY = "_ProxyMeterProvider"


def is_measured() -> bool:
    """Whether an SDK reads the measurements: until it has set a provider, OpenTelemetry's API has a proxy."""
    api = sys.modules.get("opentelemetry.metrics")
    return _IN_ENVIRONMENT if api is None else type(api.get_meter_provider()).__name__ != _PROXY


def _count(name: str, attributes: dict[str, Any]) -> None:
    if "opentelemetry" in sys.modules or _IN_ENVIRONMENT:
        instruments()[name].add(1, attributes)


def attempt_succeeded(task: str, action: str | None = None) -> None:
    """Count a successful attempt. It is on the path of every call, so it does no more. Never raises."""
    totals.add("total_attempts")
    if is_measured():
        with suppress(Exception):  # any error of an SDK or its exporter
            _count("attempts", {**_of_task({"node_id": task, "action_id": action}), "outcome": "success"})


def count(happening: str, kind: str, name: str, payload: Payload, whole: Whole = None) -> None:
    """Count an event, and pass it to the handlers of `on`, without sending it."""
    observe(happening, payload)
    tell(happening, kind, name, payload, whole)


def observe(happening: str, payload: Payload) -> None:
    """Count an event. Never raises: a metric must not fail the work."""
    if happening not in _COUNTED:
        return
    counter, total, attributes = _COUNTED[happening]
    try:
        if happening in _ENDS_OF_ATTEMPTS:
            _count_attempt(payload)
        if total is not None:
            totals.add(total)
        if happening == "run.recovered":
            totals.count_recovery(payload["after"])
        if is_measured():
            _count(counter, attributes(payload))
            if happening == "run.recovered":
                instruments()[DURATION].record(payload["after"], attributes(payload))
    except Exception:  # noqa: BLE001 - any error of an SDK or its exporter
        return


def circuit_changed(name: str, before: str, after: str) -> None:
    """Count a change of a circuit's state."""
    payload = {"name": name, "before": before, "after": after}
    observe("circuit", payload)
    if after in {"open", "forced_open"}:
        observe("circuit.opening", payload)


def _count_attempt(payload: Payload) -> None:
    """Count an attempt that failed, or a call that a circuit or a limit rejected."""
    by = name_rejecting_guard(payload.get("category"), payload.get("exception_type"))
    if by is not None:
        totals.add("rejected_calls")
        _count("refusals", {**_of_task(payload), "by": by})
        return
    totals.add("total_attempts")
    if int(payload.get("attempt") or 1) > 1:
        totals.add("failed_retries")
    _count("attempts", {**_of_error(payload), "outcome": "failure"})


def _of_task(payload: Payload) -> dict[str, Any]:
    """The task; for a node of a plan also its action, so that nodes of many plans can be counted together."""
    action = payload.get("action_id")
    named = {"task": label_of("task", payload.get("node_id") or payload.get("name"))}
    return named if action is None else {**named, "action": label_of("action", action)}


def _of_error(payload: Payload) -> dict[str, Any]:
    error: Payload = payload.get("error") or payload
    return {**_of_task(payload), "category": str(error.get("category") or "unknown")}


_ENDS_OF_ATTEMPTS = ("retry.scheduled", "run.failed", "fallback.used")
_COUNTED: dict[str, tuple[str, str | None, Callable[[Payload], dict[str, Any]]]] = {
    "retry.scheduled": ("retries", None, _of_error),
    "run.failed": ("failures", "failures", _of_error),
    "fallback.used": (
        "fallbacks",
        "fallbacks_used",
        lambda p: {**_of_error(p), "degraded": "true" if p.get("degraded") else "false"},
    ),
    "run.recovered": ("recoveries", None, _of_error),
    "circuit": (
        "circuit.transitions",
        None,
        lambda p: {"circuit": label_of("circuit", p["name"]), "from": p["before"], "to": p["after"]},
    ),
    "circuit.opening": (
        "circuit.opens",
        "circuit_opens",
        lambda p: {"circuit": label_of("circuit", p["name"])},
    ),
    "effect.replayed": ("effects.replayed", None, lambda p: {"task": label_of("task", p.get("node_id"))}),
    "effect.in-doubt": ("effects.in_doubt", None, lambda p: {"task": label_of("task", p.get("node_id"))}),
    "dead-letter.created": ("dead_letters.created", None, _of_error),
    "dead-letter.replayed": (
        "dead_letters.replayed",
        None,
        lambda p: {"task": label_of("task", p.get("name")), "result": str(p.get("result"))},
    ),
    "batch.recovered": ("batches.recovered", None, lambda p: {"outcome": str(p.get("action"))}),
    "deadline.exceeded": ("deadlines.exceeded", None, _of_task),
    "budget.burned": ("budget.burns", None, lambda p: {"budget": label_of("budget", p.get("name"))}),
    "cap.reached": ("caps.reached", None, lambda p: {"cap": label_of("cap", p.get("name"))}),
    "run.parked": ("runs.parked", None, lambda p: {"flow": label_of("flow", p.get("flow"))}),
    "run.woken": ("runs.woken", None, lambda p: {"flow": label_of("flow", p.get("flow"))}),
    "run.stranded": ("runs.stranded", None, lambda p: {"flow": label_of("flow", p.get("flow"))}),
}
"""For each event its counter, its name in the totals, and its attributes."""


# Metrics of short-lived processes: set `OTEL_PYTHON_METER_PROVIDER=prefect_resilience` in their environment.
#
# A worker runs each flow run in its own process, which Prometheus cannot scrape. OpenTelemetry's API loads
# `meter_provider` by its entry point at the first measurement, so no program has to be changed.


def meter_provider() -> MeterProvider:
    """A provider that pushes to OTEL_EXPORTER_OTLP_ENDPOINT every OTEL_METRIC_EXPORT_INTERVAL ms and at exit.

    OTEL_METRICS_EXPORTER names another installed exporter, such as `console`.
    """
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.resources import Resource

    name = os.environ.get("OTEL_METRICS_EXPORTER", "otlp_proto_http")
    from importlib.metadata import entry_points

    (exporter,) = entry_points(group="opentelemetry_metrics_exporter", name=name)
    # Each process counts from 0. Without an id for each process, the counts would overwrite each other.
    resource = Resource.create({"service.instance.id": str(uuid4())})
    return MeterProvider([PeriodicExportingMetricReader(exporter.load()())], resource=resource)
