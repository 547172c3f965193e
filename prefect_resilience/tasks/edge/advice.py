"""The recovery hint of a run that ended badly, with the commands that carry it out."""

from __future__ import annotations

import shlex
from datetime import datetime, timezone
from typing import TYPE_CHECKING

from prefect_resilience.durable.batches.edge.recovery import hint_of
from prefect_resilience.durable.batches.strategies import RESTARTS, RecoveryHint, RecoveryPolicy
from prefect_resilience.durable.effects.ledger import open_ledger
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.telemetry.model import Advice

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun

COMMAND = "prefect-resilience batches"
DOUBTS_SHOWN = 3


def advice_for(
    flow_run: FlowRun, batch_id: str, policy: RecoveryPolicy | None = None, *, automatic: bool = False
) -> Advice | None:
    """How to go on with the batch of a flow run; None when there is nothing to recover, or it still runs.

    Asks the store and the Prefect API. Raises StoreUnavailable.
    """
    ledger = open_ledger()
    hint = hint_of(ledger, batch_id, policy)
    if hint is None and batch_id != str(flow_run.id) and flow_run.parent_task_run_id is None:
        hint = hint_of(ledger, str(flow_run.id), policy)
    if hint is None:
        return None
    deployed = flow_run.deployment_id is not None
    itself = _by_itself(hint) if automatic and hint.automatic and deployed else ""
    return Advice(hint.strategy, redact(hint.why), commands(hint, batch_id, deployed=deployed), itself)


def commands(hint: RecoveryHint, batch_id: str, *, deployed: bool) -> tuple[tuple[str, str], ...]:
    """What to type, and what for."""
    batch = shlex.quote(batch_id)
    if hint.waiting:
        settle = [
            (
                f"Look at the receiver, then say what became of {key!r} (done, or not-done)",
                f"{COMMAND} settle {batch} {shlex.quote(key)} done",
            )
            for key in hint.waiting[:DOUBTS_SHOWN]
        ]
        return (*settle, *_again(batch_id, deployed=deployed, then="And then run it again"))
    if hint.strategy in RESTARTS:
        return _again(batch_id, deployed=deployed, then="Run the same flow run again")
    if hint.strategy == "compensate":
        return (("Undo what was done", f"{COMMAND} rollback {batch}"),)
    if hint.strategy == "abandon":
        return (("Give it up", f"{COMMAND} abandon {batch}"),)
    look = ("See what was done and what was not", f"{COMMAND} show {batch}")
    return (look, *_again(batch_id, deployed=deployed, then="When the cause is mended, run it again"))


def _again(batch_id: str, *, deployed: bool, then: str) -> tuple[tuple[str, str], ...]:
    if deployed:
        strategy = " --strategy restart" if "cause" in then else ""
        return ((then, f"{COMMAND} recover {shlex.quote(batch_id)}{strategy}"),)
    how = f"{then}: it has no deployment, so start your program inside the batch, and what is done stays done"
    return ((how, f"with batch({batch_id!r}):\n    ..."),)


def _by_itself(hint: RecoveryHint) -> str:
    if hint.strategy not in RESTARTS or hint.next_at is None:
        return "The automation does this by itself."
    moment = f"{datetime.fromtimestamp(hint.next_at, timezone.utc):%Y-%m-%d %H:%M:%S} UTC"
    return f"The automation does this by itself, at {moment} or soon after: attempt {hint.attempt}."
