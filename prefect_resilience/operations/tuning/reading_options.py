"""Reads the options with which tasks ran, and when circuits rejected calls."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import timedelta
from typing import Any

from prefect_resilience.errors.exceptions import ResilienceError
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.guards.circuits import CircuitSnapshot, get_circuits
from prefect_resilience.operations.reports.api import Api, Filter, Period, ours
from prefect_resilience.operations.reports.happenings import KEPT, changes_of, refusals_of
from prefect_resilience.operations.reports.task_runs import moment
from prefect_resilience.operations.tuning.evidence import KnownOptions
from prefect_resilience.operations.tuning.record import RecordedOpening

MOST_TASKS = 300
DAY = timedelta(days=1)


def options_of(api: Api, period: Period, unknown: dict[str, str]) -> list[KnownOptions]:
    """The latest options of each task that ran in the period, from the events with which it told them.

    A process tells them again after a day, so events from a day before the period count.
    """
    filters: Filter = {
        "occurred": Period(period.since - DAY, period.until).occurred(),
        "event": {"name": ours("task.configured")},
    }
    by_task: dict[str, list[dict[str, Any]]] = {}
    for row in api.count_by("resource", filters):
        by_task.setdefault(row["label"], []).append(row)
    tasks = sorted(by_task, key=lambda task: max(row["end_time"] for row in by_task[task]), reverse=True)
    if len(tasks) > MOST_TASKS:
        unknown["options"] = f"The options of {MOST_TASKS} of {len(tasks)} tasks were read."
    read = api.each(lambda task: _latest(api, filters, by_task[task]), tasks[:MOST_TASKS])
    found = [one for one in read if one is not None]
    mixed = sorted(one.task for one in found if one.mixed)
    if mixed:
        unknown["mixed options"] = (
            "These tasks ran with several sets of options at the same time; the latest is given: "
            + ", ".join(mixed)
        )
    return found


def _latest(api: Api, filters: Filter, rows: list[dict[str, Any]]) -> KnownOptions | None:
    """The options that a task told last."""
    latest = max(rows, key=lambda row: row["end_time"])
    event = api.latest_event({**filters, "resource": {"id": [latest["value"]]}})
    payload: dict[str, Any] = event["payload"] if event else {}
    if not isinstance(payload.get("options"), dict):
        return None
    others = [row for row in rows if row is not latest]
    first = moment(latest["start_time"])
    return KnownOptions(
        task=payload["task"],
        task_key=payload["task_key"],
        options=_as_recorded(payload["options"]),
        block=payload.get("block"),
        changed_at=first.timestamp() if others and first else None,
        mixed=any(row["end_time"] > latest["start_time"] for row in others),
    )


def _as_recorded(options: dict[str, Any]) -> dict[str, object]:
    """The options with the limit on calls at the same time instead of the list of all limits."""
    limits: list[dict[str, Any]] = options.pop("limits", [])
    found = [one for one in limits if "max_concurrent" in one]
    if len(found) != 1:
        return options
    return {**options, "limits": {name: found[0].get(name) for name in ("max_concurrent", "max_wait")}}


def openings_of(api: Api, period: Period, unknown: dict[str, str]) -> dict[str, list[RecordedOpening]]:
    """When each circuit rejected calls, from its events and its document in the store."""
    try:
        snapshots: Iterable[CircuitSnapshot] = get_circuits()
    except ResilienceError as error:
        snapshots = ()
        unknown["circuits"] = (
            f"Openings that no run caused are not known: the store is unavailable ({redact(str(error))})."
        )
    changes = changes_of(api, Period(max(period.since, period.until - KEPT), period.until))
    until = period.until.timestamp()
    refusals = refusals_of(changes, snapshots, period.since.timestamp(), until)
    return {
        name: [
            RecordedOpening(
                start=change.at,
                end=None if end is None or end > until else max(end, change.at),
                forced=change.after == "forced_open",
                reason=change.reason,
            )
            for change, end in times
        ]
        for name, times in refusals.items()
    }
