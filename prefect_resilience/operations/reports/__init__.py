"""The fleet report: what was retried, failed, replaced and recovered in a period, and how long it took."""

from prefect_resilience.operations.reports.figures import FleetReport
from prefect_resilience.operations.reports.reading import areport, report

__all__ = ["FleetReport", "areport", "report"]
