"""The artifacts at the end of a flow run: its summary, and the hint how to continue.

    @flow(on_completion=[run_summary], on_failure=[run_summary], on_crashed=[run_summary])

Prefect calls these hooks with positional arguments in the run's process, and with keyword arguments in the
worker when that process has died. Errors in them are logged and never fail the run.
"""

from __future__ import annotations

import asyncio
import shlex
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

from prefect.client.orchestration import get_client
from prefect.logging.loggers import flow_run_logger

from prefect_resilience.base.edge.current_settings import is_enabled
from prefect_resilience.base.outcomes import has_loop
from prefect_resilience.base.text import utc_text
from prefect_resilience.durable.batches.edge.flow_runs import ERROR_LABEL, label_of_error
from prefect_resilience.durable.batches.edge.status import hint_of
from prefect_resilience.durable.batches.edge.tags import batch_of_flow_run
from prefect_resilience.durable.batches.strategies import RESTARTS, RecoveryHint, RecoveryPolicy
from prefect_resilience.durable.effects.ledger import open_ledger
from prefect_resilience.errors.classify.classify import ErrorInfo, classify
from prefect_resilience.errors.classify.shapes import state_error
from prefect_resilience.errors.context import attached_context
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.errors.taxonomy import bounded
from prefect_resilience.tasks.edge.seams import on_task_run_state
from prefect_resilience.tasks.edge.telling import Telling, write_artifact
from prefect_resilience.tasks.summaries.markdown import hint_markdown
from prefect_resilience.telemetry import notes
from prefect_resilience.telemetry.edge.call_totals import send_totals
from prefect_resilience.telemetry.edge.events import announce_recoverable, note_state, watch_runs
from prefect_resilience.telemetry.model import Advice

if TYPE_CHECKING:
    from prefect import Flow
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun, State

COMMAND = "prefect-resilience batches"
DOUBTS_SHOWN = 3


def commands(hint: RecoveryHint, batch_id: str, *, deployed: bool) -> tuple[tuple[str, str], ...]:
    """Pairs: the purpose of a command, and the command."""
    batch = shlex.quote(batch_id)
    is_manual = not hint.waiting and hint.strategy not in RESTARTS
    again = f"{COMMAND} recover {batch}{' --strategy restart' if is_manual else ''}"
    how = ""
    if not deployed:
        how = ". It has no deployment, so start your program inside the batch; done effects are not repeated"
        again = f"with batch({batch_id!r}):\n    ..."
    if hint.waiting:
        settle = "Check the receiver, then record the outcome of {key!r} (done, or not-done)"
        outcomes = [
            (settle.format(key=key), f"{COMMAND} settle {batch} {shlex.quote(key)} done")
            for key in hint.waiting[:DOUBTS_SHOWN]
        ]
        return (*outcomes, (f"Then run it again{how}", again))
    if hint.strategy in RESTARTS:
        return ((f"Run the same flow run again{how}", again),)
    if hint.strategy == "compensate":
        return (("Compensate the effects that are done", f"{COMMAND} rollback {batch}"),)
    if hint.strategy == "abandon":
        return (("Abandon the batch", f"{COMMAND} abandon {batch}"),)
    look = ("Show which effects are done", f"{COMMAND} show {batch}")
    return (look, (f"When the cause is fixed, run it again{how}", again))


@dataclass(frozen=True)
class Ending:
    """What a flow leaves at its end. `policy`: the limits of its automatic recovery, if it has one."""

    summary: bool = True
    hint: bool = True
    policy: RecoveryPolicy | None = None
    dead_letter: bool = False

    @property
    def leaves(self) -> bool:
        """Whether it leaves anything after a run that ended badly."""
        return self.summary or self.hint or self.dead_letter


def run_summary(flow: Flow[..., Any], flow_run: FlowRun, state: State[Any]) -> Any:
    """Write an artifact `run-summary-<flow>-<run>-...` that shows what happened in the run.

    For `@flow(on_completion=[run_summary], on_failure=[run_summary], on_crashed=[run_summary],
    on_cancellation=[run_summary])`, or some of these. It shows with a picture what was retried, rejected by a
    circuit, answered by a fallback, replayed or is in doubt; after a run that ended badly, also how to
    continue. A run without any such event gets no artifact. Never raises.
    """
    return leave_artifacts(Ending(), flow, flow_run, state)


def recovery_hint(flow: Flow[..., Any], flow_run: FlowRun, state: State[Any]) -> Any:
    """Write how to continue the run to the log, and to an artifact `recovery-hint-<flow>-<run>-...`.

    For `@flow(on_failure=[recovery_hint], on_crashed=[recovery_hint])`. A run inside another one gets no
    hint: only its root can be run again. Never raises.
    """
    return leave_artifacts(Ending(summary=False), flow, flow_run, state)


def leave_artifacts(ending: Ending, flow: Flow[..., Any], flow_run: FlowRun, state: State[Any]) -> Any:
    """Write the artifacts. Returns an awaitable if an event loop is running, to keep the loop free."""
    if not is_enabled():
        return None
    leave = partial(_leave, ending, flow, flow_run, state)
    return asyncio.to_thread(leave) if has_loop() else leave()


def _leave(ending: Ending, flow: Flow[..., Any], flow_run: FlowRun, state: State[Any]) -> None:
    log = flow_run_logger(flow_run=flow_run, flow=flow)
    try:
        EndOfRun(flow, flow_run, state, log, ending).leave()
    except Exception as failure:  # noqa: BLE001 - the run has ended, and this must not change that
        log.warning("The summary of this run could not be written: %r", failure)


@dataclass
class EndOfRun(Telling):
    """The end of one flow run, and what it leaves."""

    ending: Ending

    def leave(self) -> None:
        run = self.flow_run
        send_totals(ended=run.id)
        if self.ending.dead_letter:
            self._letter()
        if not self.ending.summary and not (self.ending.hint and self.badly):
            return
        noted = notes.last_notes(str(run.id))
        if self.whole and not self.badly and not (noted is not None and noted.remarkable):
            notes.forget([str(run.id)])
            return  # a quiet run: the API is not even asked
        advice = self._write_hint() if self.badly and self.ending.hint else None
        if self.ending.summary:
            self.tell(advice)

    def _letter(self) -> None:
        """Keep the run as a dead letter. If the run has completed, its earlier letter is settled instead."""
        # Imported late: it is a large part of the package and imports this module.
        from prefect_resilience.tasks.edge.run_hooks import capture_for_flow, dead_letter, settle_for_flow

        failed, crashed = self.state.is_failed(), self.state.is_crashed()
        written = self.flow.on_failure_hooks if failed else self.flow.on_crashed_hooks
        if self.state.is_completed():
            settle_for_flow(self.flow, self.flow_run)
        elif (failed or crashed) and dead_letter not in written:
            capture_for_flow(self.flow, self.flow_run, self.state)

    def _write_hint(self) -> Advice | None:
        """Log how to continue, label the run with its error, and inform the automation that recovers it.
        Without a summary, write an artifact too."""
        with get_client(sync_client=True) as client:
            self._label(client)
            run = client.read_flow_run(self.flow_run.id)
            advice = self._advice(run)
            if advice is None:
                return None
            first = redact(" ".join(advice.commands[0][1].split()))
            self.log.warning("How to continue: %s: %s. %s", advice.strategy, advice.why, first)
            if self.ending.policy is not None and self.state.is_failed():
                announce_recoverable(run)
            if not self.ending.summary:
                text = hint_markdown(run.name, self.flow.name, self.state.name or "", advice)
                line = f"{advice.strategy}: {advice.why}"
                write_artifact(client, run, self.flow.name, "recovery-hint", text, line)
            return advice

    def _label(self, client: SyncPrefectClient) -> None:
        """Write the run's error on the run, for a later recovery."""
        error = state_error(self.state)
        if not isinstance(error, Exception):
            return
        context = attached_context(error)
        info = classify(error) if context is None else ErrorInfo.model_validate(context, from_attributes=True)
        info = info.model_copy(update={"message": bounded(info.message, 500)})
        with suppress(Exception):
            client.update_flow_run_labels(
                self.flow_run.id, {ERROR_LABEL: label_of_error(self.state.id, info)}
            )

    def _advice(self, run: FlowRun) -> Advice | None:
        """How to continue the batch of the run. None if there is nothing to recover, and without a store."""
        try:
            ledger, policy, batch_id = open_ledger(), self.ending.policy, batch_of_flow_run(run)
            hint = hint_of(ledger, batch_id, policy)
            if hint is None and batch_id != str(run.id) and run.parent_task_run_id is None:
                hint = hint_of(ledger, str(run.id), policy)
        except Exception as failure:  # noqa: BLE001 - any error of the store or the API
            self.log.warning("How to continue this run is unknown: %r", failure)
            return None
        if hint is None:
            return None
        deployed, itself = run.deployment_id is not None, ""
        if policy is not None and hint.automatic and deployed:
            restarts = hint.strategy in RESTARTS and hint.next_at is not None
            when = f" at {utc_text(hint.next_at)} or soon after: attempt {hint.attempt}" if restarts else ""
            itself = f"The automation does this{when}."
        return Advice(hint.strategy, redact(hint.why), commands(hint, batch_id, deployed=deployed), itself)


on_task_run_state(note_state)
watch_runs()
