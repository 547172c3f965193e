"""The flow that an operator deploys: advice every week, as an artifact and on the dashboard."""

from __future__ import annotations

from typing import Annotated, Any

from prefect import flow
from prefect.artifacts import create_markdown_artifact
from prefect.logging import get_run_logger
from pydantic import Field

from prefect_resilience.base.edge.current_settings import current_settings
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.operations.tuning.report import LatestAdvice, TuningReport, headline_of, page_of
from prefect_resilience.operations.tuning.tuning import tune as make_report
from prefect_resilience.stores import open_store
from prefect_resilience.stores.base import change

PLACE = "tuning/latest"


@flow(name="tune")
def tune(days: Annotated[float, Field(gt=0, le=35)] = 7, task: str | None = None) -> dict[str, Any]:
    """Advise which numbers of the tasks' policies to change, as the artifact "policy-advice".

    Nothing is changed: `prefect-resilience tune --apply` writes advice to the policy blocks.

    Args:
        days: How many days of runs the advice is based on.
        task: Only the advice for this task.
    """
    report = make_report(f"{days}d", task)
    logger = get_run_logger()
    logger.info("%s", headline_of(report))
    for one in report.advice:
        logger.info("%s, %s: %s", one.task, one.option, redact(one.why))
    create_markdown_artifact(markdown=page_of(report), key="policy-advice", description=headline_of(report))
    keep_latest(report)
    return report.model_dump(mode="json")


def keep_latest(report: TuningReport) -> None:
    """Replace the document that the dashboard shows. Raises StoreUnavailable."""
    latest = report.latest().model_dump(mode="json")
    change(open_store(current_settings().store_url), PLACE, lambda _: latest, 21 * 86_400.0)


def latest_advice(store: str | None = None) -> LatestAdvice | None:
    """The document; None if no flow has written one in three weeks. Raises StoreUnavailable."""
    document = open_store(store or current_settings().store_url).load(PLACE)
    return None if document is None else LatestAdvice.model_validate(document.value)
