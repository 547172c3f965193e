"""Flows for operators: the fleet report, and the circuits table."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Annotated, Any

from prefect import flow
from prefect.artifacts import create_markdown_artifact
from prefect.logging import get_run_logger
from pydantic import Field

from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.operations.reports import reading
from prefect_resilience.operations.reports.rendering import markdown_of
from prefect_resilience.operations.reports.sections import headline
from prefect_resilience.tasks.edge.circuits_table import write_circuits_table

KEY = "fleet-report"


@flow(name="report")
def report(
    hours: Annotated[float, Field(gt=0, le=24 * 365)] = 24,
    since: datetime | None = None,
    until: datetime | None = None,
) -> dict[str, Any]:
    """What was retried, failed, replaced and recovered in a period, as the artifact "fleet-report".

    Args:
        hours: How far the report looks back from its end.
        since: Its beginning, in place of hours. A time without an offset is in UTC.
        until: Its end; now when left out.
    """
    begin = since or (until - timedelta(hours=hours) if until else timedelta(hours=hours))
    made = reading.report(begin, until)
    get_run_logger().info("%s", headline(made))
    try:
        create_markdown_artifact(markdown=markdown_of(made), key=KEY, description=headline(made))
    except Exception as error:  # noqa: BLE001 - whatever the API says
        get_run_logger().warning("The report is made, but no artifact shows it: %s", redact(str(error)))
    return made.model_dump(mode="json")


@flow(name="show-circuits")
def show_circuits() -> list[dict[str, Any]]:
    """Write every circuit of the fleet into the artifact "circuits", those in trouble first."""
    circuits = write_circuits_table()
    get_run_logger().info("Circuits: %d", len(circuits))
    return [circuit.model_dump(mode="json") for circuit in circuits]
