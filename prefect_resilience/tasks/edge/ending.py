"""The artifacts at the end of a flow run: its summary, and the hint how to continue.

    @flow(on_completion=[run_summary], on_failure=[run_summary], on_crashed=[run_summary])

Prefect calls these hooks with positional arguments in the run's process, and with keyword arguments in the
worker when that process has died. Errors in them are logged and never fail the run.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, replace
from datetime import datetime, timedelta
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from httpx import HTTPError
from prefect.client.orchestration import get_client
from prefect.context import FlowRunContext
from prefect.logging.loggers import flow_run_logger
from prefect.task_runners import ThreadPoolTaskRunner

from prefect_resilience.base.edge.current_settings import is_enabled
from prefect_resilience.base.outcomes import has_loop
from prefect_resilience.base.process import at_exit, start_thread
from prefect_resilience.base.text import utc_text
from prefect_resilience.durable.batches.edge.closing import close_left_behind
from prefect_resilience.durable.batches.edge.flow_runs import ERROR_LABEL, label_of_error
from prefect_resilience.durable.batches.edge.status import hint_of
from prefect_resilience.durable.batches.edge.tags import batch_of_flow_run, states_of
from prefect_resilience.durable.batches.run_passes import RunPass, Start, passes_of
from prefect_resilience.durable.batches.strategies import RESTARTS, RecoveryPolicy
from prefect_resilience.durable.effects.ledger import open_ledger
from prefect_resilience.durable.letters.edge.known import queue_of
from prefect_resilience.durable.letters.queue import OPEN
from prefect_resilience.errors.classify.classify import ErrorInfo, classify
from prefect_resilience.errors.classify.shapes import state_error
from prefect_resilience.errors.context import ErrorContext, attached_context
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.errors.taxonomy import bounded
from prefect_resilience.tasks.edge import summary_reading as reading
from prefect_resilience.tasks.edge.artifacts import own_client, write_artifact
from prefect_resilience.tasks.edge.seams import has_only_tasks, on_task_run_state
from prefect_resilience.tasks.summaries.markdown import commands, headline, markdown
from prefect_resilience.tasks.summaries.story import Story, divide
from prefect_resilience.telemetry import notes
from prefect_resilience.telemetry.edge.call_totals import send_totals
from prefect_resilience.telemetry.edge.events import announce_recoverable, note_state, state_seen, watch_runs
from prefect_resilience.telemetry.model import ENDED_BADLY, Advice, Happening, TaskRunSeen

if TYPE_CHECKING:
    from prefect import Flow
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun, State

HELD = 3.0
"""The most seconds for which the end of a run waits for its summary."""
AFTER_A_DEATH = 12.0
"""Seconds for a run whose process has died: the API receives its last events some seconds later."""
LOOKS = 10.0
"""Seconds after which nothing more is read."""
EVERY = 1.0
AT_THE_END = 10.0
"""The most seconds for which the end of the process waits for summaries that are being written."""
CLOSING_SETTLES, CLOSING = 30.0, 1.0

T = TypeVar("T")

_ending = threading.Event()
"""Set when the process ends: then nothing waits for the Prefect API to hear more."""
_threads: list[threading.Thread] = []
"""The threads that may still be writing a summary."""


@dataclass(frozen=True)
class Ending:
    """What a flow leaves at its end. It is the hook of a resilient flow, whose copies lose unknown fields.

    `policy`: the limits of its automatic recovery, if it has one.
    """

    summary: bool = True
    hint: bool = True
    policy: RecoveryPolicy | None = None

    __name__ = "run_summary"

    def __call__(self, flow: Flow[..., Any], flow_run: FlowRun, state: State[Any]) -> Any:
        """Write the artifacts. Returns an awaitable if an event loop is running, to keep the loop free."""
        if not is_enabled():
            return None
        leave = partial(_leave, self, flow, flow_run, state)
        return asyncio.to_thread(leave) if has_loop() else leave()


def run_summary(flow: Flow[..., Any], flow_run: FlowRun, state: State[Any]) -> Any:
    """Write an artifact `run-summary-<flow>-<run>-...` that shows what happened in the run.

    For `@flow(on_completion=[run_summary], on_failure=[run_summary], on_crashed=[run_summary],
    on_cancellation=[run_summary])`, or some of these. It shows with a picture what was retried, rejected by a
    circuit, answered by a fallback, replayed or is in doubt; after a run that ended badly, also how to
    continue. A run without any such event gets no artifact. Never raises.
    """
    return Ending()(flow, flow_run, state)


def _leave(ending: Ending, flow: Flow[..., Any], flow_run: FlowRun, state: State[Any]) -> None:
    log = flow_run_logger(flow_run=flow_run, flow=flow)
    try:
        EndOfRun(flow, flow_run, state, log, ending).leave()
    except Exception as failure:  # noqa: BLE001 - the run has ended, and this must not change that
        log.warning("The summary of this run could not be written: %r", failure)


@dataclass
class EndOfRun:
    """The end of one flow run, and what it leaves. The summary is read once and written once.

    `here`: the run took place in this process; if not, its process has died and its notes are lost. `alone`:
    its task runs took place here, too, and it started no other flow. `whole`: it has one pass besides. `ids`
    has the run and the runs inside it. `missing` names what could not be read.
    """

    flow: Flow[..., Any]
    flow_run: FlowRun
    state: State[Any]
    log: logging.LoggerAdapter[Any]
    ending: Ending

    def __post_init__(self) -> None:
        run, context = self.flow_run, FlowRunContext.get()
        self.here: bool = context is not None or notes.last_notes(str(run.id)) is not None
        has_threads = isinstance(self.flow.task_runner, ThreadPoolTaskRunner)
        self.alone: bool = self.here and has_threads and has_only_tasks(context)
        self.whole: bool = self.alone and run.run_count <= 1
        self.badly: bool = self.state.type.value in ENDED_BADLY
        self.ids: list[UUID] = [run.id]
        self.missing: list[str] = []
        self.until: float = 0.0

    def leave(self) -> None:
        run = self.flow_run
        send_totals(ended=run.id)
        if not self.ending.summary and not (self.ending.hint and self.badly):
            return
        noted = notes.last_notes(str(run.id))
        if self.whole and not self.badly and not (noted is not None and noted.remarkable):
            notes.forget([str(run.id)])
            return  # a quiet run: the API is not even asked
        advice = self._write_hint() if self.badly and self.ending.hint else None
        if self.ending.summary:
            self.tell(advice)

    def _write_hint(self) -> Advice | None:
        """Log how to continue, label the run with its error, and inform the automation that recovers it."""
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
            return advice

    def _label(self, client: SyncPrefectClient) -> None:
        """Write the run's error on the run, for a later recovery."""
        error = state_error(self.state)
        if not isinstance(error, Exception):
            return
        context = attached_context(error)
        info = classify(error) if context is None else ErrorInfo.model_validate(context, from_attributes=True)
        wait = info.retry_after if context is None else rest_of_wait(context, self.state.timestamp)
        info = info.model_copy(update={"message": bounded(info.message, 500), "retry_after": wait})
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
            attempt = "" if hint.attempt is None else f": attempt {hint.attempt}"
            when = f" at {utc_text(hint.next_at)} or soon after{attempt}" if restarts else ""
            itself = f"The automation does this{when}."
        return Advice(hint.strategy, redact(hint.why), commands(hint, batch_id, deployed=deployed), itself)

    # The summary.

    def tell(self, advice: Advice | None) -> None:
        """Write the summary in a thread, and wait a limited time for it. Never raises."""
        try:
            thread = start_thread("run-summary", self._work, advice, context=copy_context())
        except RuntimeError:  # no thread can be started any more
            return
        _threads[:] = [*filter(threading.Thread.is_alive, _threads), thread]
        thread.join(HELD if self.here else AFTER_A_DEATH + HELD)

    def _work(self, advice: Advice | None) -> None:
        try:
            with own_client() as client:  # it retries while the API is busy
                story = self._look(client)
                if self.badly or story.remarkable:
                    text = markdown(replace(story, missing=tuple(self.missing)), advice)
                    line = headline(story)
                    write_artifact(client, self.flow_run, self.flow.name, "run-summary", text, line)
        except Exception as failure:  # noqa: BLE001 - the run has ended, and this must not change that
            self.log.warning("The summary of this run could not be written: %r", failure)
        finally:
            if self.flow_run.parent_task_run_id is None:
                notes.forget(map(str, self.ids))

    def _read(self, name: str, otherwise: T, read: Callable[..., T], *args: Any) -> T:
        """What the API or the store answers; `otherwise` if there is no answer in time."""
        if time.monotonic() < self.until:
            try:
                return read(*args)
            except Exception as failure:  # noqa: BLE001 - a summary with less is still useful
                self.log.debug("%s could not be read: %r", name, failure)
        self.missing.append(name)
        return otherwise

    def _look(self, client: SyncPrefectClient) -> Story:
        """The story of the run, read once."""
        run, state = self.flow_run, self.state
        passes: Sequence[RunPass] = ()
        runs: list[tuple[TaskRunSeen, int]] = []
        events: list[Happening] = []
        self.until = time.monotonic() + LOOKS
        if not self.whole:
            self.ids += self._read("the runs inside it", [], reading.read_inner_runs, client, run.id)
            self._wait(client)
            self.until = time.monotonic() + LOOKS
            run = self._read("the run", run, client.read_flow_run, run.id)
            states = self._read("its states", [], states_of, client, run.id)
            passes = passes_of(states, reading.origin_of(run), run.run_count)
            if len(passes) > 1:  # before the task runs are read
                close = partial(close_left_behind, settles=CLOSING_SETTLES, within=CLOSING)
                self._read("unfinished task runs", None, close, client, run)
            runs = self._read("task runs", [], reading.read_task_runs, client, self.ids)
            if len(runs) >= reading.MOST_RUNS:
                self.missing.append(f"task runs after the first {reading.MOST_RUNS:,}")
        start = run.start_time or state.timestamp
        since = start - timedelta(days=1)
        if not passes:
            end = state_seen(state)
            words = (end.at, end.name, end.type, end.message)
            passes = (RunPass(1, start.timestamp(), Start("unknown"), *words, over=True),)
        if not self.whole:
            events = self._read("events", [], reading.read_events, client, self.ids, since)
        noted = notes.facts_by_pass(map(str, self.ids))
        parts = divide(passes, str(run.id), noted, runs, events)
        letters = ()
        if self.badly or any(part.facts.counts["dead-letter.created"] for part in parts):
            letters = self._read("dead letters", (), _letters_of, {*map(str, self.ids)}, since)
        return Story(run.name, self.flow.name, parts, len(self.ids) - 1, letters)

    def _wait(self, client: SyncPrefectClient) -> None:
        """Wait until the API knows about the run's end, if some of it may not be noted in this process."""
        until = time.monotonic() + AFTER_A_DEATH
        while not self.alone:
            with suppress(HTTPError):
                if reading.has_heard_the_end(client, self.flow_run.id, self.state.id, died=not self.here):
                    return
            if time.monotonic() >= until or _ending.wait(EVERY):
                self.missing.append("the latest events, which the API had not received yet")
                return


def rest_of_wait(context: ErrorContext, now: datetime) -> float | None:
    """The seconds until the service that failed is back by its own word. The call that it answered may have
    been long before the end of the run."""
    while context.cause is not None and context.cause.retry_after is not None:
        context = context.cause
    wait = context.retry_after
    return None if wait is None else max(wait - (now - context.timestamp).total_seconds(), 0.0)


def _letters_of(flow_run_ids: set[str], since: datetime) -> tuple[tuple[str, str, str], ...]:
    """The dead letters of these flow runs that wait: for each its id, its task and its error."""
    letters = queue_of().letters(OPEN, since=since)
    own = [letter for letter in letters if flow_run_ids.intersection(letter.flow_runs)]
    return tuple((letter.id, letter.name, letter.summary()) for letter in own)


@at_exit
def _wait_for_summaries() -> None:
    """Wait up to AT_THE_END seconds for the summaries that are being written."""
    _ending.set()
    until = time.monotonic() + AT_THE_END
    for thread in [*_threads]:
        thread.join(max(until - time.monotonic(), 0.0))


on_task_run_state(note_state)
watch_runs()
