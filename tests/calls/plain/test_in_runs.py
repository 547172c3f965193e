"""`@resilient` inside task runs: totals in the summary, and no attempts on top of attempts."""

from __future__ import annotations

import pytest
from prefect import flow, task
from prefect.client.orchestration import get_client

from prefect_resilience import CircuitBreaker, Effect, Fallback, resilient, resilient_flow, resilient_task
from tests.calls.plain.ways import FAST, Script, coroutine, every_way, function

pytestmark = pytest.mark.api
CUT = ConnectionError("cut")


@pytest.fixture
def summary_of():
    """Runs a flow; the summary that it leaves, or None."""

    def run(work):
        run_id = work(return_state=True).state_details.flow_run_id
        body = {"artifacts": {"flow_run_id": {"any_": [str(run_id)]}}}
        with get_client(sync_client=True) as client:
            found = client.request("POST", "/artifacts/filter", json=body).json()
        return next((one["data"] for one in found if one["key"].startswith("run-summary-")), None)

    return run


@pytest.mark.smoke
@every_way(function, coroutine)
def test_the_totals_of_a_run_are_those_of_the_service(way, summary_of):
    script = Script(1, CUT, 2, CUT, CUT, CUT, 3, ValueError("wrong"), 4)
    call = way(script, retry=FAST, name="page")

    @resilient_task
    def pages():
        for _ in range(6):
            try:
                call()
            except (ConnectionError, ValueError):
                continue

    @resilient_flow
    def work():
        pages()

    text = summary_of(work)
    assert script.calls == 9
    assert "| `page` | 6 | 9 | 2 |" in text
    assert "## Calls inside tasks" in text
    assert "| `page` | 6 | 9 | 2 | " in text
    assert "wrong" in text


def test_rejected_calls_and_fallbacks_are_counted(summary_of):
    script = Script(CUT)
    circuit = CircuitBreaker("totals", failure_threshold=2)
    call = function(script, retry=None, circuit=circuit, fallback=Fallback.value(0), name="ask")

    @resilient_flow
    def work():
        for _ in range(5):
            call()

    assert "| `ask` | 5 | 2 | 3 | 5 |" in summary_of(work)


def test_a_quiet_run_has_no_summary(summary_of):
    call = function(Script(1), retry=FAST)

    @resilient_flow
    def work():
        for _ in range(3):
            call()

    assert summary_of(work) is None


def test_effects_in_a_task_belong_to_its_run_and_are_replayed_by_its_retry():
    sent, failures = [], [CUT]

    @resilient(effect=Effect(kind="external", key="mail:{to}"))
    def mail(to):
        sent.append(to)
        return to

    @resilient_task(retry=FAST)
    def letters():
        done = [mail(to) for to in ("ada", "grace")]
        if failures:
            raise failures.pop()
        return done

    @flow
    def work():
        return letters()

    assert work() == ["ada", "grace"]
    assert sent == ["ada", "grace"]


def test_in_a_plain_task_the_lines_go_to_the_log_of_the_run(run_log):
    call = function(Script(CUT, 1), retry=FAST, name="page")

    @task
    def work():
        return call()

    @flow
    def run():
        return work()

    assert run() == 1
    said = [record for record in run_log if "page: Retrying (2/3)" in record.getMessage()]
    assert [record.name for record in said] == ["prefect.task_runs"]
