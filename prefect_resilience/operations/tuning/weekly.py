"""The flow that an operator deploys: advice every week, as an artifact and on the dashboard."""

from __future__ import annotations

from typing import Annotated, Any

from prefect import flow
from prefect.artifacts import create_markdown_artifact
from prefect.logging import get_run_logger
from pydantic import Field

from prefect_resilience.errors.exceptions import StoreUnavailable
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.operations.tuning.latest import keep_latest
from prefect_resilience.operations.tuning.page import headline_of, page_of
from prefect_resilience.operations.tuning.report import TuningGoal
from prefect_resilience.operations.tuning.tuning import tune as make_report

KEY = "policy-advice"


@flow(name="tune")
def tune(
    days: Annotated[float, Field(gt=0, le=35)] = 7, task: str | None = None, goal: TuningGoal | None = None
) -> dict[str, Any]:
    """Advise which numbers of the tasks' policies to change, as the artifact "policy-advice".

    Nothing is changed: `prefect-resilience tune --apply` writes advice to the policy blocks.

    Args:
        days: How many days of runs the advice is based on.
        task: Only the advice for this task.
        goal: What matters more than usual: recover (runs that end well), latency (short runs) or load (few
            calls to a service in trouble).
    """
    report = make_report(f"{days}d", task, goal)
    logger = get_run_logger()
    logger.info("%s", headline_of(report))
    for one in report.advice:
        logger.info("%s, %s: %s", one.task, one.option, redact(one.why))
    try:
        keep_latest(report)
    except StoreUnavailable as error:
        logger.warning("The advice is not on the dashboard: %s", redact(str(error)))
    try:
        create_markdown_artifact(markdown=page_of(report), key=KEY, description=headline_of(report))
    except Exception as error:  # noqa: BLE001 - any error of the API
        logger.warning("The artifact %r could not be written: %s", KEY, redact(str(error)))
    return report.model_dump(mode="json")
