"""The real SDK with a Prometheus exporter, scraped over HTTP."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator

import httpx
import pytest

from prefect_resilience.telemetry import metrics

LINE = re.compile(r"^(?P<name>[a-z_]+)\{(?P<labels>.*)\} (?P<value>\S+)$")
LABEL = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


class Scraped:
    """What a scrape said: the value of a series by the labels that are asked for, less what it was before."""

    def __init__(self, text: str, before: Scraped | None = None) -> None:
        self.text = text
        self.before = before
        self.lines = [found.groupdict() for line in text.splitlines() if (found := LINE.match(line))]

    def sum(self, name: str, **labels: str) -> float:
        """All series of that name which have these labels, added up."""
        wanted = labels.items()
        earlier = 0.0 if self.before is None else self.before.sum(name, **labels)
        return -earlier + sum(
            float(line["value"])
            for line in self.lines
            if line["name"] == f"prefect_resilience_{name}"
            and wanted <= dict(LABEL.findall(line["labels"])).items()
        )

    def values(self, label: str) -> set[str]:
        return {
            value for line in self.lines for name, value in LABEL.findall(line["labels"]) if name == label
        }


@pytest.fixture(scope="session")
def exporter() -> Iterator[str]:
    from opentelemetry import metrics as opentelemetry
    from opentelemetry.exporter.prometheus import PrometheusMetricReader
    from opentelemetry.sdk.metrics import MeterProvider
    from prometheus_client import start_http_server

    opentelemetry.set_meter_provider(MeterProvider(metric_readers=[PrometheusMetricReader()]))
    server, thread = start_http_server(0, addr="127.0.0.1")
    yield f"http://127.0.0.1:{server.server_port}/metrics"
    server.shutdown()
    server.server_close()
    thread.join()


@pytest.fixture
def scrape(exporter: str, monkeypatch: pytest.MonkeyPatch) -> Callable[[], Scraped]:
    """Scrapes what has been counted since the test began: others of this process may use the same names, and
    may have used up the number of names that are kept."""
    monkeypatch.setattr(metrics, "_labels", dict[str, dict[str, str]]())

    def text() -> str:
        answer = httpx.get(exporter)
        answer.raise_for_status()
        return answer.text

    before = Scraped(text())
    return lambda: Scraped(text(), before)
