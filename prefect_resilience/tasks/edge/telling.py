"""The summary of one flow run: collected, written, and written again when more is known.

The end of a run waits at most HELD seconds for it. After that, a thread continues beside other work of the
process, and the end of the process waits for it up to AT_THE_END seconds. A run whose process has died delays
nothing, so its summary gets more time at once.
"""

from __future__ import annotations

import logging
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
from prefect_resilience.tasks.summaries.story import Story, circuits_met, circuits_of, one_pass, story_of
from prefect_resilience.telemetry import notes
from prefect_resilience.telemetry.model import Advice, Happening, PassFacts, RunFacts, together

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun, State

CLOSING = 1.0
"""Seconds for closing the task runs that earlier passes left unfinished."""

CLOSING_SETTLES = 30.0
_WAITING = frozenset({"waiting", "replaying", "in_doubt"})

NO_ANSWER = "The Prefect API did not answer in time: this summary has only the records of this process."
NOT_HEARD = "The Prefect API had not received every event yet: the latest ones may be missing."
SLOW = "The Prefect API was slow: some of its records are missing here."


@dataclass
class Subject:
    """The run of a summary.

    `here`: it ran in this process. `alone`: its task runs ran in the process of the flow, and it started no
    other flow. `letter` is its own dead letter, which has no event. `noted_passes` are the passes that this
    process noted, of the run and of the runs inside it.
    """

    flow_name: str
    flow_run: FlowRun
    state: State[Any]
    here: bool
    alone: bool
    letter: Happening | None = None
    noted_passes: set[tuple[str, int]] = field(default_factory=set[tuple[str, int]])

    @property
    def whole(self) -> bool:
        """Whether all of it happened in this process, in one pass."""
        return self.here and self.alone and self.flow_run.run_count <= 1

    def noted(self, ids: Iterable[UUID]) -> dict[tuple[str, int], PassFacts]:
        """The facts that this process noted about these flow runs."""
        found = notes.seen_by_pass(str(one) for one in ids)
        self.noted_passes |= found.keys()
        return found


@dataclass
class SummaryLookup:
    """One lookup, until `until` on the `monotonic()` clock. Then `ids` has the run and the runs inside it."""

    subject: Subject
    client: SyncPrefectClient
    until: float
    missing: list[str] = field(default_factory=list[str])
    ids: list[UUID] = field(default_factory=list[UUID])

    def look(self) -> Story:
        """The story of the run. Its `missing` lists what could not be looked up."""
        subject = self.subject
        self.ids = [subject.flow_run.id]
        if subject.whole:
            story = one_pass(self._facts(subject.flow_run), together(subject.noted(self.ids).values()))
        else:
            story = self._passes()
        letter, seen = subject.letter, story.last
        if letter is not None and letter.subject not in seen.letters:
            seen.happened(letter)
        return replace(self._afterwards(story), missing=tuple(self.missing))

    def _passes(self) -> Story:
        """The story of a run with several passes, or with parts in other processes."""
        subject, client = self.subject, self.client
        run_id = subject.flow_run.id
        jobs: dict[str, Callable[[], Any]] = {
            "run": partial(client.read_flow_run, run_id),
            "states": partial(states_of, client, run_id),
            "inner": partial(reading.inner_runs, client, run_id),
            "audit": partial(_audit_of, subject.flow_run),
        }
        if not (subject.here and subject.alone):
            jobs["heard"] = partial(reading.heard_of_the_end, client, run_id, subject.state.id)
        found = answers(jobs, self.until, at_once=len(jobs))
        run: FlowRun = found.get("run", subject.flow_run)
        states: list[RunState] = found.get("states", [])
        inner: list[UUID] = found.get("inner", [])
        self.ids += inner
        noted = subject.noted(self.ids)
        facts = self._facts(run)
        passes = passes_of(states, reading.origin_of(run), found.get("audit", ()), run.run_count)
        if not passes:
            self.missing.append(NO_ANSWER)
            return one_pass(facts, together(noted.values()))
        if "heard" in jobs and not found.get("heard"):
            self.missing.append(NOT_HEARD)
        if len(passes) > 1:
            # Before the task runs are counted.
            closing = partial(close_left_behind, client, run, settles=CLOSING_SETTLES, within=CLOSING)
            answers({"closed": closing}, min(self.until, time.monotonic() + 2 * CLOSING))
        parts = by_pass(noted, passes, str(run_id))
        story = story_of(facts, passes, parts, self._read(passes, parts))
        story.last.inner_runs = len(inner)
        return story

    def _read(
        self, passes: Sequence[RunPass], parts: Mapping[int, Sequence[PassFacts]]
    ) -> dict[int, reading.PassRead]:
        """What the API knows about passes that were not entirely in this process."""
        alone = self.subject.here and self.subject.alone and len(self.ids) == 1
        here = {number for number in parts if alone}
        windows = reading.windows_of(passes)
        wanted = {number: window for number, window in windows.items() if number not in here}
        last = {passes[-1].number} & wanted.keys()
        read = reading.read_passes(self.client, self.ids, wanted, last, self.until)
        if not read.whole:
            self.missing.append(SLOW)
        return read.passes

    def _afterwards(self, story: Story) -> Story:
        """Add the changes of the run's circuits by any process or person, and the current state of its dead
        letters."""
        names = circuits_met(story.happenings)
        began, ended = story.passes[0].run_pass.began, story.passes[-1].run_pass.ended
        jobs: dict[str, Callable[[], Any]] = {}
        if names:
            until = time.time() + reading.DAY if ended is None else ended + 1.0
            jobs["moves"] = partial(reading.circuit_events, self.client, names, began - 1.0, until)
            jobs["states"] = lambda: {one.name: one.state for one in get_circuits()}
        if story.letters:
            ids = {str(one) for one in self.ids}
            jobs["letters"] = partial(_waiting_letters, ids, story.letters, began - reading.DAY)
        found = answers(jobs, self.until)
        if late := sorted(jobs.keys() - found.keys()):
            told = {"moves": "circuit changes", "states": "circuit states", "letters": "dead letters"}
            asked = " and ".join(told[one] for one in late)
            self.missing.append(f"Not read in time, so those of other runs may be missing: {asked}.")
        moves = [*story.happenings, *found.get("moves", ())]
        waiting = found.get("letters")
        return replace(story, circuits=circuits_of(moves, found.get("states")), waiting=waiting)

    def _facts(self, run: FlowRun) -> RunFacts:
        state = self.subject.state
        ended = run.end_time or state.timestamp
        return RunFacts(
            id=str(run.id),
            name=run.name,
            flow=self.subject.flow_name,
            state_type=state.type.value,
            state=state.name or state.type.value.title(),
            message=redact(state.message or ""),
            began=run.start_time.timestamp() if run.start_time is not None else None,
            ended=ended.timestamp(),
            times_run=run.run_count,
        )


def by_pass(
    noted: Mapping[tuple[str, int], PassFacts], passes: Sequence[RunPass], flow_run_id: str
) -> dict[int, list[PassFacts]]:
    """The notes of a run and of the runs inside it, by the number of the run's pass."""
    found: dict[int, list[PassFacts]] = {}
    for (run_id, count), seen in noted.items():
        moments = [state.at for run in seen.task_runs for state in run.states]
        moments += [one.at for one in seen.happenings]
        own = count if run_id == flow_run_id else 0
        if moments:
            of = pass_of_task_run(passes, own, min(moments))
        else:
            of = next((one for one in passes if own and one.count == own), None)
        if of is not None:
            found.setdefault(of.number, []).append(seen)
    return found


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


HELD = 3.0
"""The most seconds for which the end of a run waits for its summary."""

FIRST = 2.0
"""Seconds of HELD for the lookup; the rest is for writing."""

AFTER_A_DEATH = 12.0
"""Seconds for a run whose process has died: the API receives its last events some seconds later."""

PATIENCE = 20.0
"""Seconds for the second lookup, if the API did not know everything at the first."""

EVERY = 1.0
AT_THE_END = 5.0
"""The most seconds for which the end of the process waits for summaries that are being written."""

MOST_LINKS = 20


@dataclass
class Telling:
    """Writes the summary of one run. `badly`: the run ended badly, so a summary is written in any case."""

    subject: Subject
    log: logging.LoggerAdapter[Any]
    badly: bool
    advice: Advice | None = None
    _written: str = field(default="", init=False)

    def tell(self) -> None:
        """Write the summary in a thread, and wait a limited time for it. Never raises."""
        written = threading.Event()
        try:
            thread = start_thread("run-summary", self._work, written.set, context=copy_context())
        except RuntimeError:  # no thread can be started any more
            return
        _threads[:] = [*filter(threading.Thread.is_alive, _threads), thread]
        written.wait(HELD if self.subject.here else AFTER_A_DEATH + HELD)

    def _work(self, written: Callable[[], None]) -> None:
        here = self.subject.here
        try:
            # No retries in the client: their delays would exceed the time limits.
            with temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}), own_client() as client:
                whole = self._told(client, FIRST if here else AFTER_A_DEATH, wait=not here)
                written()
                if not whole:
                    self._told(client, PATIENCE, wait=True)
        except Exception as failure:  # noqa: BLE001 - the run has ended, and this must not change that
            self.log.warning("The summary of this run could not be written: %s", redact(repr(failure)))
        finally:
            written()
            if self.subject.flow_run.parent_task_run_id is None:
                notes.forget(self.subject.noted_passes)

    def _told(self, client: SyncPrefectClient, seconds: float, *, wait: bool) -> bool:
        """Look everything up and write it. Returns whether everything was known."""
        until = time.monotonic() + seconds
        if wait and not self.subject.whole:
            self._wait(client, until - FIRST)
        look = SummaryLookup(self.subject, client, max(until, time.monotonic() + FIRST))
        story = look.look()
        if self.badly or story.remarkable:
            self._write(client, story, look.ids)
        return not story.missing

    def _wait(self, client: SyncPrefectClient, until: float) -> None:
        """Wait until the API knows about the run's end."""
        run, state = self.subject.flow_run, self.subject.state
        heard = partial(reading.heard_of_the_end, client, run.id, state.id)
        while time.monotonic() < until and not answers({"heard": heard}, until).get("heard"):
            time.sleep(EVERY)

    def _write(self, client: SyncPrefectClient, story: Story, ids: list[UUID]) -> None:
        links = answers({"links": partial(_others, client, ids)}, time.monotonic() + FIRST).get("links", [])
        text = markdown(story, self.advice, links)
        if text != self._written:
            write_artifact(client, self.subject.flow_run, "run-summary", text, headline(story))
            self._written = text


def write_artifact(client: SyncPrefectClient, run: FlowRun, kind: str, text: str, description: str) -> None:
    """Write a markdown artifact of a run. A later one of the same kind becomes its next version."""
    plain = description.replace("**", "").replace("`", "").replace("\\", "")
    create_artifact(
        client,
        ArtifactCreate(
            key=f"{kind}-{run.id}",
            type="markdown",
            description=redact(bounded(plain, 500)),
            data=text,
            flow_run_id=run.id,
        ),
    )


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


_threads: list[threading.Thread] = []
"""The threads that may still be writing a summary."""


@at_exit
def _leave() -> None:
    """Wait up to AT_THE_END seconds for the summaries that are being written."""
    until = time.monotonic() + AT_THE_END
    for thread in [*_threads]:
        thread.join(max(until - time.monotonic(), 0.0))
