"""Handlers of `on`, the totals of `get_metrics`, and what dashboards and alert rules ask for."""

from __future__ import annotations

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
    AgentChain,
    CircuitBreaker,
    ConfigurationError,
    ErrorBudget,
    Fallback,
    ResilienceEvent,
    ResilienceMetrics,
    Retry,
    batch,
    dead_letters,
    get_metrics,
    on,
    resilient_task,
)
from prefect_resilience.effects import recover
from prefect_resilience.telemetry.metrics import ProcessTotals
from prefect_resilience.telemetry.payloads import EVENTS
from tests.telemetry.metrics.conftest import LABEL

QUICK = Retry(attempts=3, backoff={"kind": "none"}, budget=None)
PAGE = Path(__file__).parents[3] / "docs" / "operations.md"


@pytest.fixture
def heard():
    """What a handler of everything was told, in its order."""
    told: list[ResilienceEvent] = []
    stop = on("*", told.append)
    yield told
    stop()


def failing(times: int):
    left = iter([True] * times + [False] * 100)

    def work(question: str) -> str:
        if next(left):
            raise ConnectionError(f"{question}: password=hunter22 refused")
        return question.upper()

    return work


def asked(name: str, work, **options):
    """The value that an agent alone gives, outside of any run."""
    task = resilient_task(work, name=name, **{"retry": QUICK, **options})
    return AgentChain(name, agents={name: task}).call("why").value


def difference(before: ResilienceMetrics, name: str) -> int:
    return getattr(get_metrics(), name) - getattr(before, name)


@pytest.mark.requirement("002.24", "003.17")
def test_a_retry_and_its_recovery_are_told_in_their_order(heard):
    before = get_metrics()
    assert asked("listened", failing(2)) == "WHY"
    assert [each.event for each in heard] == [
        *("attempt.failed", "retry.scheduled") * 2,
        "run.recovered",
    ]
    assert {(each.kind, each.name) for each in heard if each.event != "attempt.failed"} == {
        ("task", "listened")
    }
    last = heard[-1].payload
    assert (last["attempts"], last["error"]["category"], last["waited"]) == (3, "network", 0)
    assert "hunter22" not in repr(heard)
    assert difference(before, "total_attempts") == 3
    assert difference(before, "successful_retries") == 1
    assert difference(before, "failed_retries") == 1
    assert get_metrics().avg_recovery_time >= 0


@pytest.mark.requirement("002.12", "002.25")
def test_a_failure_says_how_long_it_took(heard):
    before = get_metrics()
    with pytest.raises(ConnectionError):
        asked("lost", failing(10))
    payload = heard[-1].payload
    assert (heard[-1].event, payload["exhausted"], payload["attempt"]) == ("run.failed", True, 3)
    assert payload["after"] >= payload["waited"] == 0
    assert difference(before, "failures") == 1
    assert difference(before, "failed_retries") == 2


@pytest.mark.requirement("003.17", "003.19")
def test_a_fallback_and_a_circuit_are_told(heard):
    before = get_metrics()
    circuit = CircuitBreaker("listened-to", failure_threshold=1, store="memory://")
    answer = asked("guarded", failing(10), circuit=circuit, fallback=[Fallback.value("none")])
    assert answer == "none"
    events = [each.event for each in heard]
    assert events.count("circuit.opened") == 1
    assert {"attempt.refused", "fallback.used", "run.degraded"} <= {*events}
    assert difference(before, "circuit_opens") == 1
    assert difference(before, "fallbacks_used") == 1
    assert difference(before, "rejected_calls") == 1
    assert difference(before, "total_attempts") == 1


@pytest.mark.requirement("003.17")
def test_a_handler_hears_what_it_asked_for_until_it_is_ended():
    told: list[str] = []
    stop = on("retry", lambda event: told.append(event.event))
    asked("once", failing(1))
    stop()
    stop()
    asked("again", failing(1))
    assert told == ["retry.scheduled"]


def test_a_handler_that_fails_does_not_concern_the_call(heard, caplog):
    def broken(event: ResilienceEvent) -> None:
        raise RuntimeError("token=abcdefghijklmnop")

    stop = on("run.recovered", broken)
    try:
        assert asked("unmoved", failing(1)) == "WHY"
    finally:
        stop()
    (said,) = [one.getMessage() for one in caplog.records if "handler" in one.getMessage()]
    assert "run.recovered" in said
    assert "abcdefghijklmnop" not in said
    assert heard[-1].event == "run.recovered"


def test_a_coroutine_function_is_refused():
    async def handler(event: ResilienceEvent) -> None: ...

    with pytest.raises(ConfigurationError, match="plain function"):
        on("retry", handler)


def test_every_event_is_on_the_operators_page():
    table = PAGE.read_text().partition("| event | when |")[2].partition("\n\n")[0]
    named = set(re.findall(r"`([a-z-]+\.[a-z-]+)`", table))
    # The one that is sent after a run has ended, for an automation.
    assert {*EVENTS} == named - {"batch.recoverable"}


@pytest.mark.requirement("003.19")
def test_without_a_recovery_there_is_no_average():
    totals = ProcessTotals()
    totals.add("total_attempts")
    assert totals.read() == ResilienceMetrics(total_attempts=1)
    totals.count_recovery(2.0)
    totals.count_recovery(4.0)
    assert totals.read().avg_recovery_time == 3.0


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
