"""Every task runner: nodes start in their turn, and nothing waits for a place that it holds."""

from __future__ import annotations

import pytest
from prefect import flow, task
from prefect.task_runners import ProcessPoolTaskRunner, ThreadPoolTaskRunner

from prefect_resilience import ErrorContext, failed, gather, on_error, otherwise, path, quorum, route, when
from tests.graphs.routing.scenes import in_flow

pytestmark = pytest.mark.api


def kg_query(outcome):
    if isinstance(outcome, str):
        raise ConnectionRefusedError(outcome)
    return {"confidence": outcome}


def generate_report(found, extra=""):
    return f"report {found['confidence']}{extra}"


def in_capitals(text):
    return text.upper()


async def manual_review(found):
    return f"review {found['confidence']}"


def text_search(drug, error: ErrorContext):
    return f"texts on {drug} after {error.code}"


def everything(outcome):
    """Nodes behind nodes, arguments from other runs, votes, a later task, and what was blocked."""
    query = task(kg_query)
    upper = task(in_capitals, name="upper")
    kg = query.submit(outcome)
    handled = on_error(kg, text_search, "aspirin")
    routed = route(
        kg,
        when(path("confidence") >= 0.9, generate_report, extra=upper.submit("!")),
        when(failed(), quorum(text_search, text_search), "aspirin"),
        otherwise(manual_review),
    )
    same = task(lambda found: found, name="same")
    blocked = on_error(same.submit(kg), text_search, "blocked")
    last = upper.submit(routed)
    failing = route(kg, when(path("confidence") == 0, print), when(failed("timeout"), print))
    gathered = gather([handled, routed, last], allow_failures=True)
    names = []
    for node in (blocked, failing):
        node.wait()
        names.append(
            type(node.result(raise_on_failure=False)).__name__ if node is failing else node.state.name
        )
    return [str(value) for value in gathered.values], names


EXPECTED = {
    0.95: (["{'confidence': 0.95}", "report 0.95!", "REPORT 0.95!"], ["Skipped", "NoRoute"]),
    "down": (
        [
            "texts on aspirin after NETWORK_ERROR",
            "texts on aspirin after NETWORK_ERROR",
            "TEXTS ON ASPIRIN AFTER NETWORK_ERROR",
        ],
        ["NotReady", "ConnectionRefusedError"],
    ),
}


def both():
    return {outcome: everything(outcome) for outcome in EXPECTED}


@pytest.mark.parametrize("workers", [1, 2])
def test_threads(mode, workers):
    assert in_flow(mode, both, task_runner=ThreadPoolTaskRunner(max_workers=workers)) == EXPECTED


@pytest.mark.timeout(240)
def test_processes():
    @flow(task_runner=ProcessPoolTaskRunner(max_workers=1))
    def scenario():
        return both()

    assert scenario() == EXPECTED


@pytest.mark.timeout(240)
def test_dask():
    from prefect_dask.task_runners import DaskTaskRunner

    cluster = {"n_workers": 1, "threads_per_worker": 1, "dashboard_address": None, "processes": False}

    @flow(task_runner=DaskTaskRunner(cluster_kwargs=cluster))
    def scenario():
        return both()

    assert scenario() == EXPECTED
