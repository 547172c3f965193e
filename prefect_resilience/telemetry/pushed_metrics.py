"""Metrics of processes that end: set `OTEL_PYTHON_METER_PROVIDER=prefect_resilience` in their environment.

A worker runs each flow run in a process of its own, which Prometheus cannot scrape. OpenTelemetry's API finds
`meter_provider` by its entry point when something is first measured, so that no program has to be changed.
"""

from __future__ import annotations

import os
from importlib.metadata import entry_points
from typing import TYPE_CHECKING
from uuid import uuid4

if TYPE_CHECKING:
    from opentelemetry.sdk.metrics import MeterProvider


def meter_provider() -> MeterProvider:
    """One that pushes to OTEL_EXPORTER_OTLP_ENDPOINT, every OTEL_METRIC_EXPORT_INTERVAL ms and at the end.

    OTEL_METRICS_EXPORTER names another exporter that is installed, such as `console`.
    """
    from opentelemetry.sdk.metrics import MeterProvider
    from opentelemetry.sdk.metrics.export import PeriodicExportingMetricReader
    from opentelemetry.sdk.resources import Resource

    name = os.environ.get("OTEL_METRICS_EXPORTER", "otlp_proto_http")
    (exporter,) = entry_points(group="opentelemetry_metrics_exporter", name=name)
    # Each process counts from 0: under one name, their counts would overwrite each other.
    resource = Resource.create({"service.instance.id": str(uuid4())})
    return MeterProvider([PeriodicExportingMetricReader(exporter.load()())], resource=resource)
