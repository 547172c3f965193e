"""The work of `run_plan`: read, check, run and report a plan."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, cast

from prefect.artifacts import create_markdown_artifact

from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.errors.taxonomy import bounded
from prefect_resilience.graphs.plans.actions import Actions
from prefect_resilience.graphs.plans.edge.nodes import TaskFactory
from prefect_resilience.graphs.plans.edge.runner import Run
from prefect_resilience.graphs.plans.model import Plan
from prefect_resilience.graphs.plans.picture import counts_of
from prefect_resilience.graphs.plans.reading.data import data_of, is_text
from prefect_resilience.graphs.plans.reading.mistakes import PlanError
from prefect_resilience.graphs.plans.reading.reading import read_plan
from prefect_resilience.graphs.plans.result import NodeResult, PlanFailed, PlanResult
from prefect_resilience.tasks.summaries.markdown import code, text

LONGEST_TITLE = 80


def carry_out(source: Any, inputs: Mapping[str, Any] | None, given: Any) -> PlanResult:
    """Run a plan inside the current flow run.

    Raises PlanError with every mistake before anything runs, ConfigurationError for actions that cannot be
    loaded, and PlanFailed if a node failed and was not handled.
    """
    factory = TaskFactory(Actions.of(given))
    plan = read_plan(source, actions=factory, inputs=inputs or {})
    factory.expect(plan.tasks)
    run = Run(plan, factory, {**plan.inputs, **(inputs or {})})
    title = title_of(plan, source)
    try:
        result = run.run()
    except PlanFailed as failure:
        write_report(plan, failure.result, title, run.logger)
        raise
    write_report(plan, result, title, run.logger)
    return result


def title_of(plan: Any, source: Any = None) -> str:
    """The title of a plan: its name, its intent, its file, or "plan"."""
    written = plan
    if isinstance(plan, str | Path):
        with suppress(PlanError):  # the run itself reports that
            written = data_of(plan)
    fields = cast("dict[str, Any]", written) if isinstance(written, dict) else {}
    if isinstance(plan, Plan):
        fields = {"name": plan.name, "intent": plan.intent}
    for name in (fields.get("name"), fields.get("intent")):
        if isinstance(name, str) and name.strip():
            return bounded(redact(" ".join(name.split())), LONGEST_TITLE)
    path = cast(Any, plan) if source is None else source
    if isinstance(path, Path) or (isinstance(path, str) and not is_text(path)):
        return bounded(redact(Path(path).stem), LONGEST_TITLE) or "plan"
    return "plan"


# -- the report, as an artifact in the Prefect UI

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
