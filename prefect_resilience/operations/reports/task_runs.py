"""The task runs of a period, read one by one; where they are too many for that, see `counted`."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any

from prefect_resilience.operations.reports.api import PAGE, Api, Filter, Period
from prefect_resilience.operations.reports.figures import FINAL, Run, Tally, task_of

SLICE = 4_000
"""Runs in a part of the period: few enough that pages by offset stay cheap."""

LOOK_BACK = timedelta(days=90)
"""How long before the period a run that ended in it may have been expected to start."""

NO_FLOW: Filter = {"subflow_runs": {"exists_": False}}
"""A flow that is called inside another is shown as a task run as well, and is none."""

EVENT = "prefect.task-run."


def state_names(api: Api, period: Period) -> dict[str, int]:
    """How many task runs ended in the period, by the name of their final state."""
    start, end = period.since - LOOK_BACK, period.until
    body = {
        "history_start": start.isoformat(),
        "history_end": end.isoformat(),
        "history_interval_seconds": (end - start).total_seconds() + 1,
        "task_runs": {**ended_in(period), **NO_FLOW},
    }
    counts: Counter[str] = Counter()
    for interval in api.post("/task_runs/history", body):
        for state in interval["states"]:
            if state["state_type"] in FINAL:
                counts[state["state_name"]] += state["count_runs"]
    return dict(counts)


def final_events(api: Api, period: Period, names: Iterable[str]) -> int:
    """How many events the API has of task runs that ended in the period under these names."""
    wanted = [EVENT + name for name in names]
    if not wanted:
        return 0
    filters = {"occurred": period.occurred(), "event": {"name": wanted}}
    return sum(row["count"] for row in api.count_by("event", filters))


def every_run(api: Api, period: Period, names: list[str] | None = None) -> Iterable[dict[str, Any]]:
    """Each task run that ended in the period, once; only those in a state of such a name, where given."""
    # Without names no state is asked for: the server would look runs up by it, and sort them for each page.
    state: Filter = {"state": {"name": {"any_": names}}} if names else {}
    total = api.count("task_runs", {**ended_in(period), **state})
    for part in period.parts(max(1, -(-total // SLICE))):
        yield from _runs_of_part(api, {**ended_in(part), **state})


def _runs_of_part(api: Api, filters: Filter) -> Iterable[dict[str, Any]]:
    total = api.count("task_runs", filters)
    for sort in ("END_TIME_DESC", "ID_DESC"):
        # Runs that end at the same moment have no order of their own: then by id, which takes longer.
        found: dict[str, dict[str, Any]] = {}
        pages = api.each(lambda offset, by=sort: api.page(filters, offset, by), range(0, total, PAGE))
        for page in pages:
            found.update((row["id"], row) for row in page)
        if len(found) >= total:
            break
    yield from (row for row in found.values() if row["state_type"] in FINAL and not _is_subflow(row))


def read_tally(api: Api, period: Period) -> Tally:
    """The figures of every task run that ended in the period, each of them read."""
    tally = Tally()
    for row in every_run(api, period):
        tally.add(run_of(row))
    return tally


def runs_by_id(api: Api, ids: Iterable[str]) -> Iterable[dict[str, Any]]:
    """These task runs, as far as the server still has them."""
    for page in api.each(lambda chunk: api.page({"id": {"any_": chunk}}), chunks(ids, PAGE)):
        yield from page


def chunks(ids: Iterable[str], size: int) -> list[list[str]]:
    listed = list(ids)
    return [listed[at : at + size] for at in range(0, len(listed), size)]


def run_of(row: dict[str, Any]) -> Run:
    """A task run as the API has it, in short."""
    start, end = moment(row["start_time"]), moment(row["end_time"])
    return Run(
        task=task_of(row["name"], row["task_key"], row["dynamic_key"]),
        type=row["state_type"],
        name=row["state_name"] or "",
        attempts=row["run_count"],
        seconds=(end - start).total_seconds() if start and end else None,
    )


def moment(text: str | None) -> datetime | None:
    """A time of the API, which ends in Z; Python 3.10 does not know that."""
    return datetime.fromisoformat(text.replace("Z", "+00:00")) if text else None


def ended_in(period: Period) -> Filter:
    """The filter for task runs that ended in the period."""
    return {"end_time": period.ended()}


def _is_subflow(row: dict[str, Any]) -> bool:
    state: dict[str, Any] = row["state"] or {}
    details: dict[str, Any] = state.get("state_details") or {}
    return bool(details.get("child_flow_run_id"))
