"""The fleet report: retries, failures, fallbacks and recoveries in a period, and their durations."""

from prefect_resilience.operations.reports.figures import FleetReport
from prefect_resilience.operations.reports.reading import report

__all__ = ["FleetReport", "report"]
