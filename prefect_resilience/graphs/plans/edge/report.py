"""Artifacts of a plan in the Prefect UI: its progress, and a final report. Errors here never fail a run."""

from __future__ import annotations

import base64
import re
import threading
from collections.abc import Generator
from contextlib import contextmanager
from contextvars import copy_context
from typing import Any

from prefect.artifacts import create_markdown_artifact, create_progress_artifact, update_progress_artifact

from prefect_resilience.base.process import start_thread
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.errors.taxonomy import bounded
from prefect_resilience.graphs.plans.edge.runner import Run
from prefect_resilience.graphs.plans.model import Plan
from prefect_resilience.graphs.plans.pictures.picture import counts_of
from prefect_resilience.graphs.plans.result import NodeResult, PlanResult
from prefect_resilience.tasks.summaries.markdown import code, text

BEGINS_AFTER = 2.0
"""Seconds before a running plan gets a progress artifact."""
EVERY = 1.0
MOST_ROWS = 300
MOST_DRAWN = 150
"""Plans with more nodes get no picture, because it would be unreadable."""
KEY_LIMIT = 60
FAILED_FIRST = {"failed": 0, "handled": 1, "succeeded": 2, "skipped": 2}


@contextmanager
def progress_shown(key: str, run: Run) -> Generator[None]:
    """Keep a progress artifact up to date from another thread while the block runs."""
    over = threading.Event()
    start_thread(key, _follow, key, run, over, context=copy_context())
    try:
        yield
    finally:
        over.set()


def _follow(key: str, run: Run, over: threading.Event) -> None:
    if over.wait(BEGINS_AFTER):
        return
    create: Any = create_progress_artifact
    update: Any = update_progress_artifact
    try:
        shown = run.percent
        artifact = create(shown, key=key, description=run.progress, _sync=True)
        ended = False
        while not ended:
            ended = over.wait(EVERY)
            if run.percent != shown:
                shown = run.percent
                update(artifact, shown, description=run.progress, _sync=True)
    except Exception as error:  # noqa: BLE001 - any error of the API
        run.logger.debug("The progress of the plan could not be updated: %s", error)


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
    rows = [*result.nodes.items()]
    if count > MOST_ROWS:
        rows.sort(key=lambda item: FAILED_FIRST[item[1].status])
    lines += [_row(name, node) for name, node in rows[:MOST_ROWS]]
    if count > MOST_ROWS:
        lines += ["", f"and {count - MOST_ROWS:,} more nodes."]
    return "\n".join([*lines, "", *_picture(plan, result)])


def _row(name: str, node: NodeResult) -> str:
    why = node.reason
    if node.error is not None:
        why = f"{node.error.summary()}; {why}" if why else node.error.summary()
    seconds = "" if node.duration is None else f"{node.duration:.1f}"
    attempts = node.attempts or ""
    return f"| {code(name)} | {node.status} | {attempts} | {seconds} | {text(bounded(why, 300))} |"


def _picture(plan: Plan, result: PlanResult) -> list[str]:
    if len(result.nodes) > MOST_DRAWN:
        return []
    try:
        svg = base64.b64encode(redact(plan.to_svg(result)).encode()).decode()
    except Exception:  # noqa: BLE001 - the report is useful without the picture
        return []
    # An image, because the V1 UI shows no mermaid.
    return [f"![the plan](data:image/svg+xml;base64,{svg})"]
