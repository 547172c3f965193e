"""In a run, attempts are below Prefect's span of the task run, which has the events of its call."""

from __future__ import annotations

from typing import Any

import pytest
from prefect import flow
from prefect.settings import PREFECT_CLOUD_ENABLE_ORCHESTRATION_TELEMETRY, temporary_settings

from prefect_resilience import CircuitBreaker, Effect, Fallback, Retry, batch, resilient_task
from prefect_resilience.calls.edge.resilient import resilient

pytestmark = pytest.mark.api

SECRET = "sk-ant-api03-abcdefghijklmnopqrstuvwxyz0123456789"
QUICK = Retry(attempts=3, backoff={"kind": "none"})


def popped(spans: Any, script: list[Any]) -> Any:
    with spans.own("inner"):
        outcome = script.pop(0)
    if isinstance(outcome, Exception):
        raise outcome
    return outcome


@pytest.mark.smoke
def test_the_attempts_rejections_fallbacks_and_replays_of_tasks_are_a_tree(spans) -> None:
    circuit = CircuitBreaker("spans-in-runs", failure_threshold=1, open_for=60)

    @resilient_task(retry=QUICK)
    def fetch(script: list[Any]) -> Any:
        return popped(spans, script)

    @resilient_task(retry=QUICK, circuit=circuit, fallback=[Fallback.value(0)], timeout=30)
    def ask(script: list[Any]) -> Any:
        return popped(spans, script)

    @resilient_task(effect=Effect(kind="external", key="invoice:7"))
    def send(script: list[Any]) -> Any:
        return popped(spans, script)

    @resilient_task(retry=QUICK)
    def stream(script: list[Any]) -> Any:
        yield popped(spans, script)

    @resilient(retry=QUICK)
    def page(script: list[Any]) -> Any:
        return popped(spans, script)

    @resilient_task
    def pages() -> Any:
        return page([ConnectionError(), 4])

    @flow
    def work() -> list[Any]:
        answers = [fetch([ConnectionError(f"refused for {SECRET}"), 1]), ask([ConnectionError()])]
        answers += [*stream([ConnectionError(), 3]), pages()]
        return [*answers, fetch.submit([5]).result()]

    @flow
    def bill() -> str | None:
        with batch("spans"):
            return send([2], return_state=True).name

    assert work() == [1, 0, 3, 4, 5]
    assert [bill(), bill()] == ["Completed", "Replayed"]
    recorded = spans.take()
    assert SECRET not in "".join(span.to_json() for span in recorded)
    assert spans.tree(recorded) == [
        "flow",
        "  task fetch",
        "    attempt fetch ConnectionError network",
        "      inner",
        "    attempt fetch",
        "      inner",
        "  task ask [rejected] [fallback]",
        "    attempt ask ConnectionError network",
        "      inner",
        "  task stream",
        "    attempt stream ConnectionError network",
        "      inner",
        "    attempt stream",
        "      inner",
        "  task pages",
        "    attempt pages",
        "      page",
        "        attempt page ConnectionError network",
        "          inner",
        "        attempt page",
        "          inner",
        "  task fetch",
        "    attempt fetch",
        "      inner",
        "flow",
        "  task send",
        "    attempt send",
        "      inner",
        "flow",
        "  task send [replayed]",
    ]


def test_without_prefects_spans_the_attempts_are_below_what_is_around_the_flow(spans) -> None:
    @resilient_task(retry=QUICK, fallback=[Fallback.value(0)])
    def fetch(script: list[Any]) -> Any:
        return popped(spans, script)

    @flow
    def work() -> Any:
        return fetch([ValueError()])

    with temporary_settings({PREFECT_CLOUD_ENABLE_ORCHESTRATION_TELEMETRY: False}), spans.own("around"):
        assert work() == 0
    assert spans.tree() == ["around [fallback]", "  attempt fetch ValueError unexpected", "    inner"]
