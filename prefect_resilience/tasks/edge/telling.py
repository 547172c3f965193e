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
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from prefect.client.schemas.actions import ArtifactCreate
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, PREFECT_UI_URL, temporary_settings

from prefect_resilience.base.drive import answers
from prefect_resilience.base.process import at_exit, start_thread
from prefect_resilience.durable.batches.audit import Audit, AuditEntry
from prefect_resilience.durable.batches.edge.closing import close_left_behind, states_of
from prefect_resilience.durable.batches.edge.tags import batch_of_flow_run
from prefect_resilience.durable.batches.run_passes import RunPass, RunState, pass_of_task_run, passes_of
from prefect_resilience.durable.effects.ledger import open_ledger
from prefect_resilience.durable.letters.edge.known import queue_of
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.errors.taxonomy import bounded
from prefect_resilience.guards.circuits.fleet import get_circuits
from prefect_resilience.tasks.edge import summary_reading as reading
from prefect_resilience.tasks.edge.circuits_table import create_artifact, own_client
from prefect_resilience.tasks.summaries.markdown import headline, markdown
from prefect_resilience.tasks.summaries.story import (
    Story,
    add_read,
    circuits_met,
    circuits_of,
    one_pass,
    story_of,
)
from prefect_resilience.telemetry import notes
from prefect_resilience.telemetry.model import (
    Advice,
    Happening,
    PassFacts,
    RunFacts,
    StateSeen,
    TaskRunSeen,
    together,
)

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun, State

CLOSING = 1.0
"""Seconds for closing the task runs that earlier passes left unfinished."""
CLOSING_SETTLES = 30.0
HELD = 3.0
"""The most seconds for which the end of a run waits for its summary."""
AFTER_A_DEATH = 12.0
"""Seconds for a run whose process has died: the API receives its last events some seconds later."""
LOOKS = 5.0
"""Seconds for reading."""
EVERY = 1.0
AT_THE_END = 5.0
"""The most seconds for which the end of the process waits for summaries that are being written."""
MOST_LINKS = 20
MOST_HISTORIES = 60
NAME_LENGTH = 60
_WAITING = frozenset({"waiting", "replaying", "in_doubt"})

NO_ANSWER = "The Prefect API did not answer in time: this summary has only the records of this process."
NOT_HEARD = "The Prefect API had not received every event yet: the latest ones may be missing."
TOO_MANY = f"The run has more than {reading.MOST_RUNS:,} task runs: the later ones are missing."

_ending = threading.Event()
"""Set when the process ends: then nothing waits for the Prefect API to hear more."""
_threads: list[threading.Thread] = []
"""The threads that may still be writing a summary."""


@dataclass
class Telling:
    """Reads and writes the summary of one run.

    `here`: the run took place in this process. `alone`: its task runs ran in the process of the flow, and it
    started no other flow. `badly`: the run ended badly, so a summary is written in any case. `letter` is its
    own dead letter, which has no event. `ids` has the run and the runs inside it.
    """

    flow_name: str
    flow_run: FlowRun
    state: State[Any]
    here: bool
    alone: bool
    log: logging.LoggerAdapter[Any]
    badly: bool
    letter: Happening | None = None
    advice: Advice | None = None
    ids: list[UUID] = field(default_factory=list[UUID])
    missing: list[str] = field(default_factory=list[str])

    @property
    def whole(self) -> bool:
        """Whether all of it happened in this process, in one pass."""
        return self.here and self.alone and self.flow_run.run_count <= 1

    def tell(self) -> None:
        """Write the summary in a thread, and wait a limited time for it. Never raises."""
        written = threading.Event()
        try:
            thread = start_thread("run-summary", self._work, written.set, context=copy_context())
        except RuntimeError:  # no thread can be started any more
            return
        _threads[:] = [*filter(threading.Thread.is_alive, _threads), thread]
        written.wait(HELD if self.here else AFTER_A_DEATH + HELD)

    def _work(self, written: Callable[[], None]) -> None:
        self.ids = [self.flow_run.id]
        try:
            # No retries in the client: their delays would exceed the time limits.
            with temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}), own_client() as client:
                story = self._look(client)
                if self.badly or story.remarkable:
                    self._write(client, story)
        except Exception as failure:  # noqa: BLE001 - the run has ended, and this must not change that
            self.log.warning("The summary of this run could not be written: %s", redact(repr(failure)))
        finally:
            written()
            if self.flow_run.parent_task_run_id is None:
                notes.forget(notes.seen_by_pass(map(str, self.ids)).keys())

    def _look(self, client: SyncPrefectClient) -> Story:
        """The story of the run. Its `missing` lists what could not be read."""
        if self.whole:
            facts = self._facts(self.flow_run)
            story = one_pass(facts, together(notes.seen_by_pass([str(self.flow_run.id)]).values()))
        else:
            story = self._passes(client)
        letter, seen = self.letter, story.last
        if letter is not None and letter.subject not in seen.letters:
            seen.happened(letter)
        return replace(self._afterwards(client, story), missing=tuple(self.missing))

    def _passes(self, client: SyncPrefectClient) -> Story:
        """The story of a run with several passes, or with parts in other processes."""
        run_id = self.flow_run.id
        if not (self.here and self.alone) and not self._wait(client):
            self.missing.append(NOT_HEARD)
        until = time.monotonic() + LOOKS
        first: dict[str, Callable[[], Any]] = {
            "run": partial(client.read_flow_run, run_id),
            "states": partial(states_of, client, run_id),
            "inner": partial(reading.read_inner_runs, client, run_id),
            "audit": partial(_audit_of, self.flow_run),
        }
        found = answers(first, until, at_once=len(first))
        run: FlowRun = found.get("run", self.flow_run)
        states: list[RunState] = found.get("states", [])
        inner: list[UUID] = found.get("inner", [])
        self.ids += inner
        noted = notes.seen_by_pass(map(str, self.ids))
        passes = passes_of(states, reading.origin_of(run), found.get("audit", ()), run.run_count)
        if not passes:
            self.missing.append(NO_ANSWER)
            return one_pass(self._facts(run), together(noted.values()))
        began = passes[0].began - reading.DAY
        if len(passes) > 1:
            # Before the task runs are read.
            closing = partial(close_left_behind, client, run, settles=CLOSING_SETTLES, within=CLOSING)
            answers({"closed": closing}, min(until, time.monotonic() + 2 * CLOSING))
        crashes = [one.ended for one in passes if one.crashed and one.ended is not None]
        second: dict[str, Callable[[], Any]] = {
            "runs": partial(reading.read_task_runs, client, self.ids),
            "events": partial(reading.read_events, client, self.ids, began),
            "beats": partial(reading.read_beats, client, run_id, crashes),
        }
        found = answers(second, until)
        if second.keys() - found.keys():
            self.missing.append(NO_ANSWER)
        runs: list[tuple[TaskRunSeen, int]] = found.get("runs", [])
        if len(runs) >= reading.MOST_RUNS:
            self.missing.append(TOO_MANY)
        self._add_histories(client, [seen for seen, _ in runs], until)
        parts = by_pass(noted, passes, str(run_id), runs, found.get("events", []))
        return replace(
            story_of(self._facts(run), passes, parts, found.get("beats", [])), inner_runs=len(inner)
        )

    def _wait(self, client: SyncPrefectClient) -> bool:
        """Wait until the API knows about the run's end, or the process ends."""
        run, died = self.flow_run, not self.here
        heard = partial(reading.has_heard_the_end, client, run.id, self.state.id, died=died)
        until = time.monotonic() + AFTER_A_DEATH
        while not answers({"heard": heard}, until).get("heard"):
            if time.monotonic() >= until or _ending.wait(EVERY):
                return False
        return True

    def _add_histories(self, client: SyncPrefectClient, runs: Iterable[TaskRunSeen], until: float) -> None:
        """Give notable task runs all of their states."""
        notable = sorted(
            (run for run in runs if run.starts > 1 or run.remarkable), key=lambda run: -run.starts
        )
        jobs: dict[str, Callable[[], list[StateSeen]]] = {
            run.id: partial(reading.read_history, client, UUID(run.id)) for run in notable[:MOST_HISTORIES]
        }
        found = answers(jobs, until)
        for run in notable:
            run.states = found.get(run.id) or run.states

    def _afterwards(self, client: SyncPrefectClient, story: Story) -> Story:
        """Add the changes of the run's circuits by any process or person, and the current state of its dead
        letters."""
        names = circuits_met(story.happenings)
        began, ended = story.passes[0].run_pass.began, story.passes[-1].run_pass.ended
        jobs: dict[str, Callable[[], Any]] = {}
        if names:
            until = time.time() + reading.DAY if ended is None else ended + 1.0
            jobs["circuit changes"] = partial(reading.read_circuit_events, client, names, began - 1.0, until)
            jobs["circuit states"] = lambda: {one.name: one.state for one in get_circuits()}
        if story.letters:
            ids = {str(one) for one in self.ids}
            jobs["dead letters"] = partial(_waiting_letters, ids, story.letters, began - reading.DAY)
        found = answers(jobs, time.monotonic() + 2.0)
        if late := sorted(jobs.keys() - found.keys()):
            asked = " and ".join(late)
            self.missing.append(f"Not read in time, so those of other runs may be missing: {asked}.")
        moves = [*story.happenings, *found.get("circuit changes", ())]
        circuits = circuits_of(moves, found.get("circuit states"))
        return replace(story, circuits=circuits, waiting=found.get("dead letters"))

    def _facts(self, run: FlowRun) -> RunFacts:
        state = self.state
        ended = run.end_time or state.timestamp
        return RunFacts(
            id=str(run.id),
            name=run.name,
            flow=self.flow_name,
            state_type=state.type.value,
            state=state.name or state.type.value.title(),
            message=redact(state.message or ""),
            began=run.start_time.timestamp() if run.start_time is not None else None,
            ended=ended.timestamp(),
            times_run=run.run_count,
        )

    def _write(self, client: SyncPrefectClient, story: Story) -> None:
        others = answers({"links": partial(_others, client, self.ids)}, time.monotonic() + 2.0)
        text = markdown(story, self.advice, others.get("links", []))
        write_artifact(client, self.flow_run, self.flow_name, "run-summary", text, headline(story))


def by_pass(
    noted: Mapping[tuple[str, int], PassFacts],
    passes: Sequence[RunPass],
    flow_run_id: str,
    runs: Iterable[tuple[TaskRunSeen, int]],
    happenings: Iterable[Happening],
) -> dict[int, list[PassFacts]]:
    """The facts about a run and the runs inside it, by the number of the run's pass: the notes of this
    process, and the task runs and events that the API has."""
    found: dict[int, list[PassFacts]] = {one.number: [] for one in passes}
    for (run_id, count), seen in noted.items():
        moments = [state.at for run in seen.task_runs for state in run.states]
        moments += [one.at for one in seen.happenings]
        own = count if run_id == flow_run_id else 0
        of = pass_of_task_run(passes, own, min(moments, default=passes[-1].began))
        if of is not None:
            found[of.number].append(seen)
    read_runs: dict[int, list[TaskRunSeen]] = {}
    for run, count in runs:
        own = count if run.flow_run_id == flow_run_id else 0
        at = min((state.at for state in run.states), default=passes[-1].began)
        if (of := pass_of_task_run(passes, own, at)) is not None:
            read_runs.setdefault(of.number, []).append(run)
    read_events: dict[int, list[Happening]] = {}
    for one in happenings:
        if (of := pass_of_task_run(passes, 0, one.at)) is not None:
            read_events.setdefault(of.number, []).append(one)
    return {
        number: [add_read(together(parts), read_runs.get(number, ()), read_events.get(number, ()))]
        for number, parts in found.items()
    }


def _audit_of(run: FlowRun) -> tuple[AuditEntry, ...]:
    """The audit log of a run's batch: who recovered it, and why."""
    return Audit(open_ledger(), batch_of_flow_run(run)).entries()


def _waiting_letters(flow_run_ids: set[str], created: frozenset[str], since: float) -> frozenset[str] | None:
    """The waiting dead letters of these flow runs; None if this store has none of the created letters."""
    known = {
        letter.id: letter.status
        for letter in queue_of().letters(datetime.fromtimestamp(since, UTC))
        if letter.id in created or letter.flow_run_id in flow_run_ids
    }
    if not created & known.keys():
        return None
    return frozenset(letter for letter, status in known.items() if status in _WAITING)


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


def _others(client: SyncPrefectClient, flow_run_ids: list[UUID]) -> list[tuple[str, str | None]]:
    """The run's other artifacts, such as the picture of a plan: pairs of a key and an address."""
    body = {"artifacts": {"flow_run_id": {"any_": [str(one) for one in flow_run_ids]}}, "limit": 100}
    response = client.request("POST", "/artifacts/filter", json=body)
    found = cast("list[dict[str, Any]]", response.raise_for_status().json())
    base = PREFECT_UI_URL.value()
    named = {
        one["key"]: f"{base}/artifacts/artifact/{one['id']}" if base else None
        for one in found
        if one["key"] and one["type"] != "progress" and not one["key"].startswith("run-summary-")
    }
    return sorted(named.items())[:MOST_LINKS]


@at_exit
def _leave() -> None:
    """Wait up to AT_THE_END seconds for the summaries that are being written."""
    _ending.set()
    until = time.monotonic() + AT_THE_END
    for thread in [*_threads]:
        thread.join(max(until - time.monotonic(), 0.0))
