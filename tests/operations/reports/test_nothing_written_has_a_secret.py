"""No planted secret is in what is written about runs: summaries, letters, reports, tables, events."""

from __future__ import annotations

import base64
import json
import logging
import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
from prefect.client.orchestration import get_client

from prefect_resilience import (
    Backoff,
    CircuitBreaker,
    ErrorBudget,
    Retry,
    dead_letters,
    error_context,
    get_circuits,
    resilient_flow,
    resilient_task,
)
from prefect_resilience.operations.reports import report
from prefect_resilience.operations.reports.rendering import html_of, markdown_of
from prefect_resilience.tasks.edge.artifacts import markdown_of as circuits_of
from prefect_resilience.telemetry.payloads import LIMIT

pytestmark = pytest.mark.api

CORPUS = json.loads((Path(__file__).parents[2] / "errors" / "planted_secrets.json").read_text())
TWICE = Retry(attempts=2, backoff=Backoff.none(), retry_on=(Exception,))


@resilient_task(task_run_name="look at {text}", retry=None)
def look(text: str) -> dict[str, str]:
    return {"said": text}


@resilient_task(
    task_run_name="say {text}",
    retry=TWICE,
    circuit=CircuitBreaker("for {text}", failure_threshold=1, counts=("unexpected",)),
    error_budget=ErrorBudget(objective=0.9, name=f"of {CORPUS[0]['secret']}"),
    dead_letter=True,
    fallback=lambda text: 1 / 0,
)
def say(text: str) -> None:
    raise RuntimeError(text)


held: list[Any] = []
"""The states of what was said."""


@resilient_flow
def saying() -> None:
    for entry in CORPUS:
        look(entry["text"])
        held.append(say(entry["text"], return_state=True))
    raise RuntimeError("\n".join(entry["text"] for entry in CORPUS))


def events_since(since: datetime) -> list[dict[str, Any]]:
    """Every event of ours, without `related`: there Prefect puts the names that runs were given."""
    body = {
        "filter": {"event": {"prefix": ["prefect-resilience."]}, "occurred": {"since": since.isoformat()}},
        "limit": 50,
    }
    with get_client(sync_client=True) as client:
        page = client.request("POST", "/events/filter", json=body).json()
        found = page["events"]
        while page["next_page"]:
            page = client._client.get(page["next_page"]).json()
            found += page["events"]
    return [{**event, "related": []} for event in found]


def artifacts_of(flow_run_id: Any) -> list[dict[str, Any]]:
    body = {"artifacts": {"flow_run_id": {"any_": [str(flow_run_id)]}}}
    with get_client(sync_client=True) as client:
        return client.request("POST", "/artifacts/filter", json=body).json()


def with_pictures(text: str) -> str:
    pictures = re.findall(r"base64,([A-Za-z0-9+/=]+)", text)
    return "\n".join([text, *(base64.b64decode(one).decode() for one in pictures)])


def what_a_state_says(state: Any) -> str:
    error = state.data.result if hasattr(state.data, "result") else state.data
    context = error_context(state)
    assert context is not None
    return "\n".join([str(error), repr(error), *error.__notes__, state.message, context.model_dump_json()])


@pytest.mark.timeout(300)
def test_none_of_the_corpus_is_in_what_is_written(until: Any, caplog: pytest.LogCaptureFixture) -> None:
    """Each planted text in a task that fails twice and then for good, and whose fallback fails too."""
    began = datetime.now(UTC)
    with caplog.at_level(logging.DEBUG):
        final = saying(return_state=True)
    run = final.state_details.flow_run_id
    count = len(CORPUS)
    assert count >= 50

    def arrived() -> list[dict[str, Any]] | None:
        events = events_since(began)
        named = [event["event"].removeprefix("prefect-resilience.") for event in events]
        awaited = ("run.failed", "retry.scheduled", "circuit.opened", "dead-letter.created")
        return (
            events if "budget.burned" in named and all(named.count(one) >= count for one in awaited) else None
        )

    events = until(arrived, 40)
    (summary,) = (one["data"] for one in artifacts_of(run) if (one["key"] or "").startswith("run-summary-"))
    assert "## Calls" in summary
    made = report(began)
    assert made.budgets
    assert len(get_circuits()) == count
    letters = dead_letters.list()
    assert len(letters) == count
    artifacts = artifacts_of(run)
    written = {
        **{f"artifact {one['key']}": with_pictures(json.dumps(one, ensure_ascii=False)) for one in artifacts},
        **{f"event {one['event']} {one['id']}": json.dumps(one, ensure_ascii=False) for one in events},
        **{f"letter {one.id}": one.model_dump_json() for one in letters},
        **{f"state {number}": what_a_state_says(state) for number, state in enumerate(held)},
        "the run's state": final.model_dump_json(exclude={"data"}),
        "log": "\n".join(logging.Formatter().format(record) for record in caplog.records),
        "circuits": circuits_of(get_circuits(), began),
        "report": made.model_dump_json(),
        "report as markdown": with_pictures(markdown_of(made)),
        "report as a page": with_pictures(html_of(made)),
    }
    leaks = [
        (place, one["secret"]) for place, text in written.items() for one in CORPUS if one["secret"] in text
    ]
    assert leaks == []
    assert max(len(json.dumps(event).encode()) for event in events) < 2 * LIMIT
