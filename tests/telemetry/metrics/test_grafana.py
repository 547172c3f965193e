"""The dashboard and the alert rules in deployments/grafana ask for metrics and labels that a real run has."""

import json
import re
import subprocess
import sys
from pathlib import Path
from uuid import uuid4

import httpx
import pytest
import yaml
from prefect import flow

from prefect_resilience import (
    CircuitBreaker,
    ErrorBudget,
    Fallback,
    Retry,
    batch,
    dead_letters,
    resilient_task,
)
from prefect_resilience.effects import recover
from tests.telemetry.metrics.conftest import LABEL

ROOT = Path(__file__).parents[3]
DASHBOARD = json.loads((ROOT / "deployments/grafana/dashboard.json").read_text())
GROUPS = yaml.safe_load((ROOT / "deployments/grafana/alerts.yaml").read_text())["groups"]
RULES = [rule for group in GROUPS for rule in group["rules"]]
PANELS = DASHBOARD["panels"]
EXPRESSIONS = [target["expr"] for panel in PANELS for target in panel["targets"]] + [
    rule["expr"] for rule in RULES
]
SUM = re.compile(
    r"sum(?: by \((?P<by>[^)]*)\))? "
    r"\(clamp_min\(max_over_time\((?P<name>prefect_resilience_\w+)(?:\{(?P<match>[^}]*)\})?\["
)
MATCHER = re.compile(r'(\w+)(=~?)"([^"]*)"')


def sums(expression):
    """What an expression adds up: metric, labels that it names, and values that these must have."""
    for found in SUM.finditer(expression):
        matchers = MATCHER.findall(found["match"] or "")
        by = {label for label in re.split(r",\s*", found["by"] or "") if label}
        values = {(label, value) for label, operator, value in matchers if operator == "="}
        yield found["name"], by | {label for label, _, _ in matchers}, values


# Each of what is measured, once for real.
@pytest.mark.api
def test_each_query_names_metrics_labels_and_values_of_a_real_run(scrape, own_store):
    circuit = CircuitBreaker(f"drawn-{uuid4().hex[:6]}", failure_threshold=1, open_for=60)
    fails = iter([True, False, True, False])

    def broken():
        raise ConnectionError

    @resilient_task(retry=Retry(attempts=2, backoff={"kind": "none"}), name="drawn")
    def recovers():
        if next(fails):
            raise ConnectionError

    @resilient_task(retry=None, effect="external", name="charged")
    def charge(answers):
        if not answers:
            raise httpx.ReadTimeout("no answer")
        return 1

    @resilient_task(retry=None, dead_letter=True, name="drawn letter")
    def lost():
        if next(fails):
            raise ConnectionError

    guarded = resilient_task(retry=None, circuit=circuit, fallback=Fallback.value(0), name="guarded")(broken)
    budget = ErrorBudget(objective=0.9, name=f"drawn-{uuid4().hex[:6]}", minimum_runs=1)
    burning = resilient_task(retry=None, error_budget=budget, name="burning")(broken)

    @flow
    def scenario():
        recovers()
        for _ in range(2):
            guarded()
        lost(return_state=True)
        for _ in range(3):
            burning(return_state=True)

    @flow
    def paying():
        charge(True)
        charge(False, return_state=True)

    name = uuid4().hex
    with batch(name):
        scenario()
        for _ in range(2):
            paying()
    dead_letters.replay()
    assert recover(name).action == "told"

    after = scrape()
    series = {}
    for line in after.lines:
        series.setdefault(line["name"], []).append(dict(LABEL.findall(line["labels"])))
    asked = set()
    for expression in EXPRESSIONS:
        found = list(sums(expression))
        # Nothing is asked for in another form, which would not be looked at here.
        assert {one for one, _, _ in found} == set(re.findall(r"prefect_resilience_\w+", expression)), (
            expression
        )
        for metric, labels, values in found:
            assert any(labels <= one.keys() and values <= one.items() for one in series.get(metric, [])), (
                f"{metric} has no series with {labels} and {values}"
            )
            asked.add(metric.removesuffix("_bucket"))
    # Everything that is counted is shown.
    shown = {one for one in series if re.fullmatch(r"prefect_resilience_\w+_total", one)}
    assert shown <= asked
    for variable in DASHBOARD["templating"]["list"]:
        if variable["type"] == "query":
            metric, label = re.fullmatch(r"label_values\((\w+), (\w+)\)", variable["definition"]).groups()
            assert any(label in one for one in series[metric])


def test_a_legend_names_labels_that_its_query_keeps():
    for panel in PANELS:
        for target in panel["targets"]:
            kept = set().union(*(labels for _, labels, _ in sums(target["expr"])))
            assert set(re.findall(r"\{\{(\w+)\}\}", target["legendFormat"])) <= kept
    for rule in RULES:
        told = "".join(rule["annotations"].values())
        kept = set().union(*(labels for _, labels, _ in sums(rule["expr"])))
        assert set(re.findall(r"\$labels\.(\w+)", told)) <= kept, rule["alert"]


PROGRAM = """
from opentelemetry import metrics
from prefect_resilience.telemetry.metrics import attempt_succeeded
from prefect_resilience.telemetry.metrics import meter_provider

metrics.set_meter_provider(meter_provider())
attempt_succeeded("pushed")
"""


@pytest.mark.slow
def test_a_process_that_ends_pushes_what_it_counted(monkeypatch):
    monkeypatch.setenv("OTEL_METRICS_EXPORTER", "console")
    ran = [
        subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
        for _ in range(2)
    ]
    told = [json.loads(one.stdout) for one in ran]
    for one in told:
        (metric,) = one["resource_metrics"][0]["scope_metrics"][0]["metrics"]
        (point,) = metric["data"]["data_points"]
        assert (metric["name"], point["value"]) == ("prefect_resilience.attempts", 1)
        assert point["attributes"] == {"task": "pushed", "outcome": "success"}
    # Processes are told apart.
    assert (
        len({one["resource_metrics"][0]["resource"]["attributes"]["service.instance.id"] for one in told})
        == 2
    )


def test_opentelemetry_finds_it_by_its_entry_point():
    declared = (ROOT / "pyproject.toml").read_text()
    group = declared.partition("[project.entry-points.opentelemetry_meter_provider]\n")[2]
    assert group.startswith('prefect_resilience = "prefect_resilience.telemetry.metrics:meter_provider"\n')
