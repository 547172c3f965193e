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
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar
from uuid import UUID

from httpx import HTTPError
from prefect.client.schemas.actions import ArtifactCreate
from prefect.context import FlowRunContext
from prefect.settings import PREFECT_API_REQUEST_TIMEOUT, PREFECT_CLIENT_MAX_RETRIES, temporary_settings
from prefect.task_runners import ThreadPoolTaskRunner

from prefect_resilience.base.process import at_exit, start_thread
from prefect_resilience.durable.batches.audit import Audit, AuditEntry
from prefect_resilience.durable.batches.edge.closing import close_left_behind, states_of
from prefect_resilience.durable.batches.edge.tags import batch_of_flow_run
from prefect_resilience.durable.batches.run_passes import RunPass, Start, passes_of
from prefect_resilience.durable.effects.ledger import open_ledger
from prefect_resilience.durable.letters.edge.known import queue_of
from prefect_resilience.durable.letters.queue import OPEN
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.errors.taxonomy import bounded
from prefect_resilience.tasks.edge import summary_reading as reading
from prefect_resilience.tasks.edge.circuits_table import create_artifact, own_client
from prefect_resilience.tasks.edge.seams import started_tasks_alone
from prefect_resilience.tasks.summaries.markdown import headline, markdown
from prefect_resilience.tasks.summaries.story import Story, circuits_met, divide, moves_of
from prefect_resilience.telemetry import notes
from prefect_resilience.telemetry.model import ENDED_BADLY, Advice, Happening, PassFacts, TaskRunSeen

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
WRITES = 30.0
"""Seconds in which a busy API is asked again to take the artifact."""
ANSWERS = 10.0
"""The most seconds for one answer of the API."""
TRIES, PAUSE = 3, 0.2
"""Attempts for each read, and the seconds between two: a server on SQLite rejects concurrent writes."""
EVERY = 1.0
AT_THE_END = 10.0
"""The most seconds for which the end of the process waits for summaries that are being written."""
CLOSING_SETTLES, CLOSING = 30.0, 1.0
MOST_HISTORIES = 60
NAME_LENGTH = 60

T = TypeVar("T")

_ending = threading.Event()
"""Set when the process ends: then nothing waits for the Prefect API to hear more."""
_threads: list[threading.Thread] = []
"""The threads that may still be writing a summary."""


@dataclass
class Telling:
    """The end of one flow run. It reads and writes the summary.

    `here`: the run took place in this process; if not, its process has died and its notes are lost. `local`:
    its task runs took place here, too. `alone`: it started no other flow. `whole`: all of it took place here,
    in one pass. `ids` has the run and the runs inside it. `missing` names what could not be read.
    """

    flow: Flow[..., Any]
    flow_run: FlowRun
    state: State[Any]
    log: logging.LoggerAdapter[Any]

    def __post_init__(self) -> None:
        run, context = self.flow_run, FlowRunContext.get()
        self.here: bool = context is not None or notes.last_notes(str(run.id)) is not None
        self.local: bool = self.here and isinstance(self.flow.task_runner, ThreadPoolTaskRunner)
        self.alone: bool = started_tasks_alone(context)
        self.whole: bool = self.local and self.alone and run.run_count <= 1
        self.badly: bool = self.state.type.value in ENDED_BADLY
        self.ids: list[UUID] = [run.id]
        self.missing: list[str] = []
        self.advice: Advice | None = None
        self.until: float = 0.0

    def tell(self, advice: Advice | None) -> None:
        """Write the summary in a thread, and wait a limited time for it. Never raises."""
        self.advice = advice
        written = threading.Event()
        try:
            thread = start_thread("run-summary", self._work, written.set, context=copy_context())
        except RuntimeError:  # no thread can be started any more
            return
        _threads[:] = [*filter(threading.Thread.is_alive, _threads), thread]
        written.wait(HELD if self.here else AFTER_A_DEATH + HELD)

    def _work(self, written: Callable[[], None]) -> None:
        try:
            # The delays of the client's own retries would exceed the time limits.
            limits: dict[Any, float] = {PREFECT_CLIENT_MAX_RETRIES: 0, PREFECT_API_REQUEST_TIMEOUT: ANSWERS}
            with temporary_settings(limits), own_client() as client:
                story = self._look(client)
                if self.badly or story.remarkable:
                    self._write(client, story)
        except Exception as failure:  # noqa: BLE001 - the run has ended, and this must not change that
            self.log.warning("The summary of this run could not be written: %s", redact(repr(failure)))
        finally:
            written()
            if self.flow_run.parent_task_run_id is None:
                notes.forget(self._notes())

    def _notes(self) -> dict[tuple[str, int], PassFacts]:
        return notes.facts_by_pass(map(str, self.ids))

    def _read(self, name: str, otherwise: T, read: Callable[..., T], *args: Any) -> T:
        """What the API or the store answers; `otherwise` if there is no answer in time."""
        for _ in range(TRIES):
            if time.monotonic() >= self.until:
                break
            try:
                return read(*args)
            except Exception as failure:  # noqa: BLE001 - a summary with less is still useful
                self.log.debug("%s could not be read: %s", name, redact(repr(failure)))
                time.sleep(PAUSE)
        self.missing.append(name)
        return otherwise

    def _look(self, client: SyncPrefectClient) -> Story:
        """The story of the run, read once."""
        run, state = self.flow_run, self.state
        passes: Sequence[RunPass] = ()
        self.until = time.monotonic() + LOOKS
        if not self.whole:
            self.ids += self._read("the runs inside it", [], reading.read_inner_runs, client, run.id)
            self._wait(client)
            self.until = time.monotonic() + LOOKS
            run = self._read("the run", run, client.read_flow_run, run.id)
            states = self._read("its states", [], states_of, client, run.id)
            audit = self._read("who recovered it", (), _audit_of, run)
            passes = passes_of(states, reading.origin_of(run), audit, run.run_count)
        if not passes:
            ended, name = state.timestamp.timestamp(), state.name or state.type.value.title()
            began = ended if run.start_time is None else run.start_time.timestamp()
            end = (ended, name, state.type.value, redact(state.message or ""))
            passes = (RunPass(1, began, Start("unknown"), *end, over=True),)
        parts = divide(passes, str(run.id), self._notes(), *self._read_others(client, run, passes))
        story = Story(run.name, self.flow.name, parts, len(self.ids) - 1)
        return self._with_circuits_and_letters(client, story)

    def _wait(self, client: SyncPrefectClient) -> None:
        """Wait until the API knows about the run's end, if some of it may not be noted in this process."""
        if self.local and self.alone:
            return
        until = time.monotonic() + AFTER_A_DEATH
        while True:
            with suppress(HTTPError):
                if reading.has_heard_the_end(client, self.flow_run.id, self.state.id, died=not self.here):
                    return
            if time.monotonic() >= until or _ending.wait(EVERY):
                self.missing.append("the latest events, which the API had not received yet")
                return

    def _read_others(
        self, client: SyncPrefectClient, run: FlowRun, passes: Sequence[RunPass]
    ) -> tuple[list[tuple[TaskRunSeen, int]], list[Happening], list[float]]:
        """The task runs, the events and the heartbeats that the API knows, unless all is known here."""
        if self.whole:
            return [], [], []
        if len(passes) > 1:  # before the task runs are read
            close = partial(close_left_behind, settles=CLOSING_SETTLES, within=CLOSING)
            self._read("unfinished task runs", None, close, client, run)
        runs = self._read("task runs", [], reading.read_task_runs, client, self.ids)
        since = passes[0].began - reading.DAY
        events = self._read("events", [], reading.read_events, client, self.ids, since)
        crashes = [one.ended for one in passes if one.crashed and one.ended is not None]
        beats = self._read("heartbeats", [], reading.read_beats, client, run.id, crashes)
        if len(runs) >= reading.MOST_RUNS:
            self.missing.append(f"task runs after the first {reading.MOST_RUNS:,}")
        notable = [seen for seen, _ in runs if seen.starts > 1 or seen.remarkable]
        for seen in sorted(notable, key=lambda seen: -seen.starts)[:MOST_HISTORIES]:
            history = self._read("states of task runs", [], reading.read_history, client, seen.id)
            seen.states = history or seen.states
        return runs, events, beats

    def _with_circuits_and_letters(self, client: SyncPrefectClient, story: Story) -> Story:
        """Add the changes of the run's circuits by any process or person, and its dead letters that wait."""
        moves, letters = story.happenings, ()
        first, last = story.passes[0].run_pass, story.passes[-1].run_pass
        if names := circuits_met(moves):
            period = (first.began - 1.0, (last.ended or time.time()) + 1.0)
            moves += self._read("circuit changes", [], reading.read_circuit_events, client, names, *period)
        if self.badly or any(part.seen.counts["dead-letter.created"] for part in story.passes):
            since = datetime.fromtimestamp(first.began - reading.DAY, UTC)
            letters = self._read("dead letters", (), _letters_of, {*map(str, self.ids)}, since)
        return replace(story, moves=moves_of(moves), letters=letters)

    def _write(self, client: SyncPrefectClient, story: Story) -> None:
        links = self._read("its other artifacts", [], reading.read_links, client, self.ids)
        text = markdown(replace(story, missing=tuple(self.missing)), self.advice, links)
        self.until = time.monotonic() + WRITES
        while True:
            try:
                write_artifact(client, self.flow_run, self.flow.name, "run-summary", text, headline(story))
                return
            except HTTPError:
                if time.monotonic() >= self.until:
                    raise
                time.sleep(PAUSE)


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
