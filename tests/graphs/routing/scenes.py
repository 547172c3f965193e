"""Flows of either mode, and the picture of a run as the UI gets it."""

from __future__ import annotations

import asyncio
import re
from dataclasses import dataclass
from typing import Any

from prefect import flow
from prefect.client.orchestration import get_client
from prefect.runtime import flow_run

from tests.prefect_runs import until


def in_flow(mode, body, *args, **options):
    """Run a body in a flow of this mode, and give what it gives. What is called in it is not awaited."""
    if mode.isasync:

        @flow(**options)
        async def scenario():
            return body(*args)

        return asyncio.run(scenario())

    @flow(**options)
    def scenario():
        return body(*args)

    return scenario()


@dataclass
class Drawn:
    """A task run as the graph shows it, other runs by their names."""

    state: str
    message: str
    behind: list[str]
    inside: list[str]
    id: str


def drawn(body, names, mode) -> tuple[Any, dict[str, Drawn]]:
    """Run a body in a flow; its value, and its task runs by name, once those of `names` have come to rest."""
    ids = []

    def noted():
        ids.append(flow_run.get_id())
        return body()

    value = in_flow(mode, noted)
    with get_client(sync_client=True) as client:
        return value, until(lambda: _picture(client, ids[0], sorted(names)))


def _picture(client, flow_run_id, names):
    asked = {"flow_runs": {"id": {"any_": [flow_run_id]}}}
    runs = client.request("POST", "/task_runs/filter", json=asked).json()
    rested = [run for run in runs if run["state"] and (run["end_time"] or run["state_name"] == "NotReady")]
    plain = {run["id"]: re.sub(r"-[0-9a-f]{3}$", "", run["name"]) for run in rested}
    if len(rested) < len(runs) or sorted(plain.values()) != names:
        return None
    nodes = dict(client.request("GET", f"/flow_runs/{flow_run_id}/graph-v2").json()["nodes"])
    if len(nodes) < len(runs):
        return None
    return {
        plain[run["id"]]: Drawn(
            state=run["state_name"],
            message=run["state"]["message"],
            behind=[plain[parent["id"]] for parent in nodes[run["id"]]["parents"]],
            inside=[plain[around["id"]] for around in nodes[run["id"]]["encapsulating"]],
            id=run["id"],
        )
        for run in rested
    }
