"""The latest advice of the weekly flow, as the dashboard shows it: a small document in the store."""

from __future__ import annotations

from typing import ClassVar

from pydantic import BaseModel, ConfigDict

from prefect_resilience.base.edge.settings import current_settings
from prefect_resilience.durable.effects.ledger import changed
from prefect_resilience.operations.tuning.page import headline_of
from prefect_resilience.operations.tuning.pictures import value_text
from prefect_resilience.operations.tuning.report import TuningReport
from prefect_resilience.stores import open_store
from prefect_resilience.telemetry.payloads import fitted_text

PLACE = "tuning/latest"
KEPT_SECONDS = 21 * 86_400.0
MOST_LINES = 50
LONGEST = 500


class AdviceLine(BaseModel):
    """One piece of advice as text."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)

    task: str
    option: str
    now: str
    better: str
    why: str


class LatestAdvice(BaseModel):
    """The advice, at most MOST_LINES of it. at: seconds since the epoch."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)

    at: float
    headline: str
    lines: tuple[AdviceLine, ...] = ()


def keep_latest(report: TuningReport) -> None:
    """Replace the document. Raises StoreUnavailable."""
    lines = [
        AdviceLine(
            task=fitted_text(one.task, LONGEST),
            option=one.option,
            now=value_text(one.now),
            better=value_text(one.better),
            why=fitted_text(one.why, LONGEST),
        )
        for one in report.advice[:MOST_LINES]
    ]
    made = LatestAdvice(at=report.until, headline=headline_of(report), lines=tuple(lines))
    store = open_store(current_settings().store_url)
    changed(store, PLACE, lambda _: made.model_dump(mode="json"), KEPT_SECONDS)


def latest_advice(store: str | None = None) -> LatestAdvice | None:
    """The document; None if no flow has written one in three weeks. Raises StoreUnavailable."""
    found = open_store(store or current_settings().store_url).load(PLACE)
    return None if found is None else LatestAdvice.model_validate(found.value)
