"""A resilient flow's run: what is written on it for others, and what its failure tells."""

from __future__ import annotations

import json
from datetime import datetime, timezone
from typing import TYPE_CHECKING, Any

from prefect.client.orchestration import get_client
from prefect.logging.loggers import flow_run_logger

from prefect_resilience.durable.batches.edge.flow_runs import RECOVERY_LABEL, RECOVERY_TAG
from prefect_resilience.durable.batches.edge.tags import TAG
from prefect_resilience.durable.batches.strategies import RecoveryPolicy
from prefect_resilience.errors.context import ErrorContext, attach_context, attached_context
from prefect_resilience.errors.requests import (
    SubtaskRequest,
    attach_request,
    is_sub_step,
    subtask_request,
    with_inner,
)
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.errors.secrets.scrub import learn_secrets, scrub_exception
from prefect_resilience.tasks.edge.answers import FlowAgain
from prefect_resilience.tasks.edge.logs import keep_secrets_out_of_logs
from prefect_resilience.telemetry import notes

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun
    from prefect.context import FlowRunContext

MOST_LETTERS = 40_000


def started(flow_run: FlowRun) -> None:
    """A run of a resilient flow has begun here."""
    keep_secrets_out_of_logs()
    notes.begin(str(flow_run.id), max(flow_run.run_count, 1), keeps_outputs=True)


def mark_run(flow_run: FlowRun, batch_id: str | None, policy: RecoveryPolicy | None) -> None:
    """Write on the run which batch it is, and how far it is recovered by itself. May block; never raises."""
    try:
        tags = {tag for tag in flow_run.tags if batch_id is None or not tag.startswith(TAG)}
        tags |= {TAG + batch_id} if batch_id is not None else set()
        # What is run again is the root.
        root = flow_run.parent_task_run_id is None
        tags |= {RECOVERY_TAG} if policy is not None and root else set()
        with get_client(sync_client=True) as client:
            if tags != set(flow_run.tags):
                client.update_flow_run(flow_run.id, tags=sorted(tags)).raise_for_status()
                flow_run.tags = sorted(tags)
            if policy is not None and root:
                written = json.dumps(policy.model_dump(mode="json"))
                if flow_run.labels.get(RECOVERY_LABEL) != written:
                    client.update_flow_run_labels(flow_run.id, {RECOVERY_LABEL: written})
    except Exception as failure:  # noqa: BLE001 - the work itself needs none of it
        log = flow_run_logger(flow_run=flow_run)
        log.warning("How to recover this run could not be written on it: %s", redact(repr(failure)))


def failed_with(error: Exception, context: FlowRunContext) -> BaseException:
    """The flow's error without secrets, with what had been completed by then in its context. Never raises."""
    try:
        learn_secrets(context.parameters or {})
        clean = scrub_exception(error)
        flow_run = context.flow_run
        assert flow_run is not None
        outputs, left_out = notes.outputs_of(str(flow_run.id))
        partial = _within(outputs, left_out)
        subflow = flow_run.parent_task_run_id is not None
        own = ErrorContext.from_exception(
            clean,
            timestamp=datetime.now(timezone.utc),
            node_id=context.flow.name if context.flow is not None else None,
            flow_run_id=str(flow_run.id),
            attempt=max(flow_run.run_count, 1),
        )
        known = attached_context(clean)
        if known is None or subflow or is_sub_step(known, own):
            # The flow is what failed; the task or subflow that made it fail is the cause.
            known = with_inner(own, known, subtask_request(clean))
        if subflow and context.flow is not None:
            again = FlowAgain(context.flow, dict(context.parameters or {}))
            asked = SubtaskRequest(context.flow.name, again.parameters, "flow", again, context.flow.fn)
            attach_request(clean, asked)
        if partial:
            known = known.model_copy(update={"details": {**known.details, "partial_results": partial}})
        attach_context(clean, known)
        return clean
    except Exception:  # noqa: BLE001 - the user's own error counts
        return error


def _within(outputs: Any, left_out: int) -> dict[str, Any]:
    """The outputs, by the name of the task run, as far as they may be kept in an exception."""
    told: dict[str, Any] = {}
    left = MOST_LETTERS
    for name, output in outputs.items():
        left -= len(name) + len(json.dumps(output, ensure_ascii=False, default=str))
        if left < 0:
            break
        told[name] = output
    if more := left_out + len(outputs) - len(told):
        told["…"] = {"truncated": True, "left_out": more}
    return told
