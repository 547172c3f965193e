"""Notes of what happens in the flow runs of this process, for the summary at the end of a run.

They are bounded: rows are left out, counts stay exact. If the process dies, its notes are lost, and only the
Prefect API still knows about the run.
"""

from __future__ import annotations

import json
import threading
from collections import Counter, OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from typing import Any

from prefect_resilience.base.plain import plain_or_cut
from prefect_resilience.base.process import per_process
from prefect_resilience.telemetry.model import (
    FINAL,
    Happening,
    PassFacts,
    StateSeen,
    TaskRunSeen,
    strip_random_part,
    together,
)
from prefect_resilience.telemetry.payloads import MARK, fit

MOST_ROWS = 20_000
"""The most rows of all flow runs together; each pass counts as ROWS_OF_A_PASS more, each task run with its
events as two. The least recently used passes are dropped."""
ROWS_OF_A_PASS = 10
MOST_REMARKABLE = 500
MOST_ORDINARY = 100
"""The rows of ended task runs of a pass. From MOST_ORDINARY on, only remarkable ones are kept."""
MOST_STATES = 120
MOST_LETTERS = 40_000
"""The characters of the outputs of a pass, which are kept in the exception of a flow."""

_SHOWN_DEPTH, _SHOWN_ITEMS, _SHOWN_BYTES = 6, 60, 10_000


@dataclass(slots=True)
class RunNotes(PassFacts):
    """Facts about one pass of a flow run. `ended_rows` is the number of rows of ended task runs."""

    ended_rows: int = 0
    keeps_outputs: bool = False
    outputs: dict[str, Any] = field(default_factory=dict[str, Any])
    outputs_left_out: int = 0
    room: int = MOST_LETTERS
    calls_of: Counter[str] = field(default_factory=Counter[str])

    @property
    def rows(self) -> int:
        return ROWS_OF_A_PASS + 2 * len(self.task_runs) + len(self.happenings) + len(self.outputs)

    def came_to(
        self, run_id: str, name: str, flow_run_id: str, state: StateSeen, key: str = ""
    ) -> TaskRunSeen:
        """Note that a task run entered a state. `key` is its dynamic key."""
        run = self.task_runs.setdefault(run_id, TaskRunSeen(run_id, name, flow_run_id))
        run.name, before = name, run.last
        # From then on a name of the user's own is known.
        if self.keeps_outputs and not run.label and state.type != "PENDING":
            run.label = self._label_for(name, key)
        if before is not None:
            self.states[before.name] -= 1
        self.count(state.type, state.name)
        run.states[MOST_STATES - 1 :] = [state]
        if state.type == "RUNNING":
            run.begun += 1
            self.count_start(run.begun)
        # For example, a task that completed and was then rolled back ends twice.
        if state.type in FINAL and not (before is not None and before.type in FINAL):
            self._limit_rows(run)
        return run

    def _label_for(self, name: str, key: str) -> str:
        stable = strip_random_part(name, key)
        self.calls_of[stable] += 1
        number = self.calls_of[stable]
        return stable if number == 1 else f"{stable} ({number})"

    def _limit_rows(self, run: TaskRunSeen) -> None:
        """Drop the row of an ended task run if there are too many."""
        if self.ended_rows < (MOST_REMARKABLE if run.remarkable else MOST_ORDINARY):
            self.ended_rows += 1
        else:
            del self.task_runs[run.id]

    def add_output(self, label: str, value: Any) -> None:
        """Note the value that a completed task run returned."""
        if label in self.outputs:
            return  # the run was rolled back, which is a second completed state
        shown = show(value)
        self.room -= len(label) + len(json.dumps(shown, ensure_ascii=False, default=str))
        if self.room < 0:
            self.outputs_left_out += 1
        else:
            self.outputs[label] = shown

    @property
    def partial_results(self) -> dict[str, Any]:
        """The outputs, and how many were left out."""
        more = self.outputs_left_out
        return {**self.outputs, "…": {MARK: True, "left_out": more}} if more else self.outputs


class _Passes:
    """The notes of this process, by flow run and run count."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.notes: OrderedDict[tuple[str, int], RunNotes] = OrderedDict()


_passes = per_process(_Passes)


def show(value: Any) -> Any:
    """A value as bounded JSON-like data without secrets. If it was cut, the result says so."""
    copy, cut = plain_or_cut(value, depth=_SHOWN_DEPTH, items=_SHOWN_ITEMS)
    payload = fit({"content": copy}, _SHOWN_BYTES)
    return {**payload, MARK: True} if cut or MARK in payload else payload["content"]


def begin(flow_run_id: str, count: int = 1, *, keeps_outputs: bool = False) -> None:
    """Start the notes of this flow run, which has begun `count` times."""
    with _passes.lock:
        notes = _of(flow_run_id, count)
        notes.keeps_outputs = notes.keeps_outputs or keeps_outputs


def task_run_came_to(
    flow_run_id: str, task_run_id: str, name: str, state: StateSeen, count: int = 1, key: str = ""
) -> tuple[RunNotes, TaskRunSeen]:
    """Note a state of a task run. Returns the flow run's notes, to which its value may be added."""
    with _passes.lock:
        notes = _of(flow_run_id, count)
        return notes, notes.came_to(task_run_id, name, flow_run_id, state, key)


def note_event(flow_run_id: str, happening: Happening, count: int = 1) -> None:
    """Note an event of this package."""
    with _passes.lock:
        _of(flow_run_id, count).add_event(happening)


def last_notes(flow_run_id: str) -> RunNotes | None:
    """The notes of the last pass of a flow run in this process."""
    with _passes.lock:
        passes = [key for key in _passes.notes if key[0] == flow_run_id]
        return _passes.notes[max(passes)] if passes else None


def forget(flow_run_ids: Iterable[str]) -> None:
    """Drop the notes of these flow runs."""
    ids = set(flow_run_ids)
    with _passes.lock:
        for key in [key for key in _passes.notes if key[0] in ids]:
            del _passes.notes[key]


def facts_by_pass(flow_run_ids: Iterable[str]) -> dict[tuple[str, int], PassFacts]:
    """The facts that this process noted about these flow runs, by flow run id and run count."""
    ids = set(flow_run_ids)
    with _passes.lock:
        return {key: _copy_of(notes) for key, notes in _passes.notes.items() if key[0] in ids}


def _copy_of(notes: RunNotes) -> PassFacts:
    facts = together([notes])
    facts.task_runs = {
        key: replace(run, states=[*run.states], events=[*run.events]) for key, run in notes.task_runs.items()
    }
    return facts


def _of(flow_run_id: str, count: int) -> RunNotes:
    key = (flow_run_id, count)
    notes = _passes.notes.get(key)
    if notes is None:
        rows = sum(old.rows for old in _passes.notes.values())
        while rows > MOST_ROWS:
            rows -= _passes.notes.popitem(last=False)[1].rows
        notes = _passes.notes[key] = RunNotes()
    _passes.notes.move_to_end(key)
    return notes
