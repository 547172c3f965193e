"""What events of ours tell of a period: failed attempts by code and category, changes of circuits, doubts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from prefect_resilience.events import PREFIX
from prefect_resilience.reports.api import Api, Period, ours
from prefect_resilience.reports.figures import StateChange
from prefect_resilience.reports.task_runs import moment

MOST_CHANGES = 5_000
CIRCUITS = ("circuit.opened", "circuit.half-opened", "circuit.closed", "circuit.forced")


@dataclass(frozen=True, slots=True)
class Happenings:
    """`circuits`: every change in the period; None when there are too many to read, `openings` still hold."""

    codes: dict[str, int]
    categories: dict[str, int]
    changes: list[StateChange] | None
    openings: dict[str, int]
    in_doubt: int

    @property
    def failed_attempts(self) -> int:
        return sum(self.codes.values())


def happenings_of(api: Api, period: Period) -> Happenings:
    """Count the events of a period, and read those of circuits."""
    # By their whole names, which the server has an index of.
    by_name = {"occurred": period.occurred(), "event": {"name": ours(*CIRCUITS, "effect.in-doubt")}}
    counts = {row["value"].removeprefix(f"{PREFIX}."): row["count"] for row in api.count_by("event", by_name)}
    codes, categories = _failed_attempts(api, period)
    changes = sum(counts.get(name, 0) for name in CIRCUITS)
    return Happenings(
        codes=codes,
        categories=categories,
        changes=None if changes > MOST_CHANGES else _changes(api, period) if changes else [],
        openings=_openings(api, period) if changes > MOST_CHANGES else {},
        in_doubt=counts.get("effect.in-doubt", 0),
    )


def _failed_attempts(api: Api, period: Period) -> tuple[dict[str, int], dict[str, int]]:
    """Failed attempts by code and by category: the events are on a resource of both."""
    filters = {"occurred": period.occurred(), "event": {"name": ours("attempt.failed")}}
    codes: Counter[str] = Counter()
    categories: Counter[str] = Counter()
    for row in api.count_by("resource", filters):
        category, _, code = row["value"].removeprefix(f"{PREFIX}.error.").partition(".")
        codes[code] += row["count"]
        categories[category] += row["count"]
    return dict(codes), dict(categories)


def _openings(api: Api, period: Period) -> dict[str, int]:
    """Openings by circuit as the server counts them, without those by hand."""
    filters = {"occurred": period.occurred(), "event": {"name": ours("circuit.opened")}}
    prefix = f"{PREFIX}.circuit."
    return {row["value"].removeprefix(prefix): row["count"] for row in api.count_by("resource", filters)}


def _changes(api: Api, period: Period) -> list[StateChange]:
    filters = {"occurred": period.occurred(), "event": {"name": ours(*CIRCUITS)}}
    events, _ = api.events(filters, MOST_CHANGES)
    return [_change(event) for event in events]


def _change(event: dict[str, Any]) -> StateChange:
    payload = event["payload"]
    occurred = moment(event["occurred"])
    seconds = payload.get("at") or (occurred.timestamp() if occurred else 0.0)
    name = event["resource"].get("prefect.resource.name", "")
    return StateChange(name, seconds, str(payload.get("before")), str(payload.get("after")))
