"""What events of ours tell of a period: attempts that failed or were refused, changes of circuits, doubts."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from datetime import timedelta
from typing import Any

from prefect_resilience.guards.circuits.document import HISTORY_KEPT
from prefect_resilience.operations.reports.api import Api, Filter, Period, ours
from prefect_resilience.operations.reports.openings import FIRST, StateChange
from prefect_resilience.operations.reports.task_runs import moment
from prefect_resilience.telemetry.edge.events import PREFIX

MOST_CHANGES = 5_000
CIRCUITS = ("circuit.opened", "circuit.half-opened", "circuit.closed", "circuit.forced")
KEPT = timedelta(days=7)
"""How long Prefect keeps events, by default."""


@dataclass(frozen=True, slots=True)
class Happenings:
    """`changes`: those of circuits in the period, and the last before it of circuits that change often; None
    when there are too many to read. refused: attempts that were not made, by task. skipped: dead letters."""

    codes: dict[str, int]
    categories: dict[str, int]
    refused: dict[str, int]
    changes: list[StateChange] | None
    in_doubt: int
    skipped: int

    @property
    def failed_attempts(self) -> int:
        return sum(self.codes.values())


def happenings_of(api: Api, period: Period) -> Happenings:
    """Count the events of a period, and read those of circuits."""
    counts = {
        row["value"].removeprefix(f"{PREFIX}."): row["count"]
        for row in api.count_by("event", _named(period, *CIRCUITS, "effect.in-doubt", "dead-letter.skipped"))
    }
    codes, categories = _failed_attempts(api, period)
    changes = sum(counts.get(name, 0) for name in CIRCUITS)
    skipped = counts.get("dead-letter.skipped", 0)
    return Happenings(
        codes=codes,
        categories=categories,
        refused=_refused(api, period),
        changes=None if changes > MOST_CHANGES else _changes(api, period) if changes else [],
        in_doubt=counts.get("effect.in-doubt", 0),
        # One that is left alone again and again is one letter.
        skipped=api.count_resources(_named(period, "dead-letter.skipped")) if skipped else 0,
    )


def _named(period: Period, *happenings: str) -> Filter:
    # By their whole names, which the server has an index of.
    return {"occurred": period.occurred(), "event": {"name": ours(*happenings)}}


def _failed_attempts(api: Api, period: Period) -> tuple[dict[str, int], dict[str, int]]:
    """Failed attempts by code and by category: the events are on a resource of both."""
    codes: Counter[str] = Counter()
    categories: Counter[str] = Counter()
    for row in api.count_by("resource", _named(period, "attempt.failed")):
        category, _, code = row["value"].removeprefix(f"{PREFIX}.error.").partition(".")
        codes[code] += row["count"]
        categories[category] += row["count"]
    return dict(codes), dict(categories)


def _refused(api: Api, period: Period) -> dict[str, int]:
    """Attempts that were not made, by task: the events are on a resource of the task."""
    rows = api.count_by("resource", _named(period, "attempt.refused"))
    return {row["label"]: row["count"] for row in rows}


def _changes(api: Api, period: Period) -> list[StateChange]:
    events, _ = api.events(_named(period, *CIRCUITS), MOST_CHANGES)
    changes = [_change(event) for event in events]
    first: dict[str, StateChange] = {}
    for change in changes:
        first.setdefault(change.circuit, change)
    often = Counter(change.circuit for change in changes)
    # Of a circuit that changed so often its document may not know how it was when the period began.
    unclear = [
        one for name, one in first.items() if often[name] >= HISTORY_KEPT // 2 and one.generation > FIRST
    ]
    before = api.each(lambda one: _before(api, period, one), unclear)
    return [*(one for one in before if one is not None), *changes]


def _before(api: Api, period: Period, first: StateChange) -> StateChange | None:
    """The last change of a circuit before the period, as far as there is an event of it."""
    about = _named(Period(period.since - KEPT, period.since), *CIRCUITS)
    about["resource"] = {"id": [f"{PREFIX}.circuit.{first.circuit}"]}
    found = api.latest_event(about)
    return None if found is None else _change(found)


def _change(event: dict[str, Any]) -> StateChange:
    payload = event["payload"]
    occurred = moment(event["occurred"])
    return StateChange(
        circuit=event["resource"].get("prefect.resource.name", ""),
        at=payload.get("at") or (occurred.timestamp() if occurred else 0.0),
        after=str(payload.get("after")),
        generation=payload.get("generation") or 0,
        before=str(payload.get("before")),
        retry_at=payload.get("retry_at"),
    )
