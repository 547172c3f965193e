"""The report of a plan as an artifact in the Prefect UI. Errors here never fail a run."""

from __future__ import annotations

import base64
import re
from typing import Any

from prefect.artifacts import create_markdown_artifact

from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.errors.taxonomy import bounded
from prefect_resilience.graphs.plans.model import Plan
from prefect_resilience.graphs.plans.pictures.picture import counts_of
from prefect_resilience.graphs.plans.result import NodeResult, PlanResult
from prefect_resilience.tasks.summaries.markdown import code, text

MOST_ROWS = 300
MOST_DRAWN = 150
"""Plans with more nodes get no picture, because it would be unreadable."""
KEY_LIMIT = 60


def write_report(plan: Plan, result: PlanResult, title: str, logger: Any) -> None:
    """Create the markdown artifact `plan-<title>`: a table of the nodes and a picture."""
    try:
        create: Any = create_markdown_artifact
        create(
            markdown=markdown(plan, result, title),
            key=artifact_key(title),
            description=f"Report of the plan run: {bounded(title, 200)}",
            _sync=True,
        )
    except Exception as error:  # noqa: BLE001 - any error of the API
        logger.warning("The report of the plan run could not be saved as an artifact: %s", error)


def artifact_key(title: str) -> str:
    """The artifact's key: lowercase letters, digits and dashes."""
    slug = re.sub(r"[^a-z0-9]+", "-", title.lower()).strip("-")[:KEY_LIMIT].strip("-")
    return f"plan-{slug or 'run'}"


def markdown(plan: Plan, result: PlanResult, title: str) -> str:
    """The report as markdown, without secrets."""
    count = len(result.nodes)
    verdict = "succeeded" if result.succeeded else "failed"
    lines = [f"# {text(title)}", "", f"The plan {verdict}: {counts_of(result)}.", ""]
    lines += ["| node | status | attempts | seconds | reason |", "|---|---|--:|--:|---|"]
    rows = sorted(result.nodes.items(), key=lambda row: row[1].status not in ("failed", "handled"))
    lines += [_row(name, node) for name, node in rows[:MOST_ROWS]]
    if count > MOST_ROWS:
        lines += ["", f"and {count - MOST_ROWS:,} more nodes."]
    if count <= MOST_DRAWN:
        # An image, because the V1 UI shows no mermaid.
        svg = base64.b64encode(redact(plan.to_svg(result)).encode()).decode()
        lines += ["", f"![the plan](data:image/svg+xml;base64,{svg})"]
    return "\n".join(lines)


def _row(name: str, node: NodeResult) -> str:
    why = node.reason
    if node.error is not None:
        why = f"{node.error.summary()}; {why}" if why else node.error.summary()
    seconds = "" if node.duration is None else f"{node.duration:.1f}"
    attempts = node.attempts or ""
    return f"| {code(name)} | {node.status} | {attempts} | {seconds} | {text(bounded(why, 300))} |"
