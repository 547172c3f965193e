"""A small day's work against a Prefect server; prints the ids of what it made as JSON.

python -m tests.ui.day
"""

from __future__ import annotations

import json
from typing import Any
from uuid import UUID

import httpx
from prefect.client.orchestration import get_client

from prefect_resilience import (
    Backoff,
    CircuitBreaker,
    Fallback,
    Retry,
    action,
    resilient_flow,
    resilient_task,
    run_plan,
)
from prefect_resilience.operations.installation import install
from prefect_resilience.tasks.edge.policy_block import ResiliencePolicy

NOBODY = "http://127.0.0.1:9"
QUICK = Retry(attempts=3, backoff=Backoff.constant(initial=0.2))


def from_the_archive(drug: str) -> dict[str, Any]:
    return {"drug": drug, "from": "archive"}


@resilient_task(
    circuit=CircuitBreaker("labels", failure_threshold=5),
    retry=QUICK,
    fallback=Fallback(from_the_archive, degraded=True),
)
def label(drug: str) -> dict[str, Any]:
    return httpx.get(f"{NOBODY}/{drug}").raise_for_status().json()


@resilient_task(retry=None)
def report(labels: list[dict[str, Any]]) -> str:
    raise ValueError("the template of the report has no field 'dose'")


@resilient_flow(name="labels", flow_run_name="labels of the day")
def labels(drugs: tuple[str, ...] = ("aspirin", "ibuprofen", "naproxen")) -> str:
    return report([label(drug) for drug in drugs])


@action("day.search")
def search(query: str) -> dict[str, Any]:
    raise ConnectionError("the knowledge graph refused the connection")


@action("day.texts")
def texts(query: str) -> dict[str, Any]:
    return {"found": [query], "confidence": 0.7}


@action("day.write")
def write(found: list[str]) -> str:
    return ", ".join(found)


PLAN: dict[str, Any] = {
    "name": "evidence",
    "tasks": [
        {"id": "graph", "type": "day.search", "input": {"query": "aspirin"}},
        {"id": "texts", "type": "day.texts", "input": {"query": "aspirin"}, "handles_error": "graph"},
        {
            "id": "write",
            "type": "day.write",
            "input": {"found": "{{texts.output.found}}"},
            "depends_on": ["graph", "texts"],
        },
    ],
}


def artifacts_of(flow_run_id: UUID) -> dict[str, str]:
    """The artifacts of a run: their ids by the beginning of their keys."""
    with get_client(sync_client=True) as client:
        answer = client.request(
            "POST",
            "/artifacts/filter",
            json={"artifacts": {"flow_run_id": {"any_": [str(flow_run_id)]}}},
        )
    return {found["key"]: found["id"] for found in answer.json() if found["key"]}


def main() -> None:
    install()
    policy = ResiliencePolicy.model_validate({"retry": {"attempts": 5, "backoff": {"initial": 1.0}}})
    told: dict[str, Any] = {
        "block": str(policy.save("llm", overwrite=True)),
        "form": str(run_plan.to_deployment("by-form").apply()),
    }
    # Last of all, so that the event feed begins with what happened in them.
    planned = run_plan(PLAN, return_state=True)
    failed = labels(return_state=True)
    ids = {"failed": failed.state_details.flow_run_id, "planned": planned.state_details.flow_run_id}
    told |= {name: str(found) for name, found in ids.items()}
    told["artifacts"] = {name: artifacts_of(found) for name, found in ids.items() if found}
    print(json.dumps(told))


if __name__ == "__main__":
    main()
