"""The summary of one flow run: read once at its end, and written once.

The end of a run waits at most HELD seconds for it. After that, a thread continues beside other work of the
process, and the end of the process waits for it up to AT_THE_END seconds. A run whose process has died delays
nothing, so its summary gets more time.
"""

from __future__ import annotations

import logging
import re
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
from prefect.client.schemas.actions import ArtifactCreate
from prefect.context import FlowRunContext
from prefect.task_runners import ThreadPoolTaskRunner

from prefect_resilience.base.process import at_exit, start_thread
from prefect_resilience.durable.batches.audit import Audit, AuditEntry
from prefect_resilience.durable.batches.edge.closing import close_left_behind
from prefect_resilience.durable.batches.edge.tags import batch_of_flow_run, states_of
from prefect_resilience.durable.batches.run_passes import RunPass, Start, passes_of
from prefect_resilience.durable.effects.ledger import open_ledger
from prefect_resilience.durable.letters.edge.known import queue_of
from prefect_resilience.durable.letters.queue import OPEN
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.errors.taxonomy import bounded
from prefect_resilience.tasks.edge import summary_reading as reading
from prefect_resilience.tasks.edge.circuits_table import create_artifact, own_client
from prefect_resilience.tasks.edge.seams import has_only_tasks
from prefect_resilience.tasks.summaries.markdown import headline, markdown
from prefect_resilience.tasks.summaries.story import Story, divide
from prefect_resilience.telemetry import notes
from prefect_resilience.telemetry.edge.events import state_seen
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
NAME_LENGTH = 60

T = TypeVar("T")

_ending = threading.Event()
"""Set when the process ends: then nothing waits for the Prefect API to hear more."""
_threads: list[threading.Thread] = []
"""The threads that may still be writing a summary."""


@dataclass
class Telling:
    """The end of one flow run. It reads and writes the summary.

    `here`: the run took place in this process; if not, its process has died and its notes are lost. `alone`:
    its task runs took place here, too, and it started no other flow. `whole`: it has one pass besides. `ids`
    has the run and the runs inside it. `missing` names what could not be read.
    """

    flow: Flow[..., Any]
    flow_run: FlowRun
    state: State[Any]
    log: logging.LoggerAdapter[Any]

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
            audit = self._read("who recovered it", (), _audit_of, run)
            passes = passes_of(states, reading.origin_of(run), audit, run.run_count)
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


def _audit_of(run: FlowRun) -> tuple[AuditEntry, ...]:
    return Audit(open_ledger(), batch_of_flow_run(run)).entries()


def _letters_of(flow_run_ids: set[str], since: datetime) -> tuple[tuple[str, str, str], ...]:
    """The dead letters of these flow runs that wait: for each its id, its task and its error."""
    letters = queue_of().matching(OPEN, since=since)
    own = [letter for letter in letters if flow_run_ids.intersection(letter.flow_runs)]
    return tuple((letter.id, letter.name, letter.summary()) for letter in own)


def write_artifact(
    client: SyncPrefectClient, run: FlowRun, flow_name: str, kind: str, text: str, description: str
) -> None:
    """Write a markdown artifact of a run. A later one of the same kind becomes its next version."""
    create_artifact(
        client,
        ArtifactCreate(
            key=artifact_key(kind, flow_name, run.name, run.id),
            type="markdown",
            description=redact(bounded(re.sub(r"[*`\\]", "", description), 500)),
            data=text,
            flow_run_id=run.id,
        ),
    )


def artifact_key(kind: str, flow_name: str, run_name: str, run_id: UUID) -> str:
    """A key that a person reads: the kind, the flow, its run, and the end of the run's id.

    Example:
        >>> artifact_key("run-summary", "ETL night", "tidy-newt", UUID(int=0x3F2A))
        'run-summary-etl-night-tidy-newt-3f2a'
    """
    names = [re.sub(r"[^a-z0-9]+", "-", redact(name).lower()).strip("-") for name in (flow_name, run_name)]
    shown = [name[:NAME_LENGTH].strip("-") for name in names if name]
    return "-".join([kind, *shown, str(run_id)[-4:]])


@at_exit
def _leave() -> None:
    """Wait up to AT_THE_END seconds for the summaries that are being written."""
    _ending.set()
    until = time.monotonic() + AT_THE_END
    for thread in [*_threads]:
        thread.join(max(until - time.monotonic(), 0.0))
