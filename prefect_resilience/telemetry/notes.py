"""Notes of what happens in the flow runs of this process, for the summary at the end of a run.

They are bounded: rows are left out, counts stay exact. If the process dies, its notes are lost, and only the
Prefect API still knows about the run.
"""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

from prefect_resilience.base.plain import plain_or_cut
from prefect_resilience.base.process import per_process
from prefect_resilience.errors.secrets.redact import redact_data
from prefect_resilience.telemetry.model import (
    CALLS_COUNTED,
    FINAL,
    Happening,
    PassFacts,
    StateSeen,
    TaskRunSeen,
    cut_random_part,
    note_letter,
    together,
)

MOST_RUNS = 2_000
MOST_ROWS = 20_000
"""The most flow runs, and the most rows of all of them together. The least recently used are dropped."""
MOST_REMARKABLE = 500
MOST_ORDINARY = 100
MOST_UNFINISHED = 2_000
MOST_STATES = 120
MOST_OF_A_KIND = 300
MOST_OUTPUTS = 50
MOST_IDS = 20_000
"""The most rows that are kept for one flow run. MOST_OF_A_KIND applies to the events of each name."""

_SHOWN_DEPTH, _SHOWN_ITEMS, _SHOWN_LETTERS = 6, 60, 2_000


@dataclass(slots=True)
class RunNotes(PassFacts):
    """Facts about one pass of a flow run. `noted` has the ids of the task runs that have ended."""

    unfinished: dict[str, TaskRunSeen] = field(default_factory=dict[str, TaskRunSeen])
    kept: dict[str, TaskRunSeen] = field(default_factory=dict[str, TaskRunSeen])
    kept_remarkable: int = 0
    kept_ordinary: int = 0
    keeps_outputs: bool = False
    calls_of: Counter[str] = field(default_factory=Counter[str])
    retries: int = 0
    retried: int = 0
    outputs_left_out: int = 0

    @property
    def rows(self) -> int:
        return len(self.kept) + len(self.unfinished) + len(self.happenings) + len(self.outputs)

    def came_to(
        self, run_id: str, name: str, flow_run_id: str, state: StateSeen, key: str = ""
    ) -> TaskRunSeen:
        """Note that a task run entered a state. `key` is its dynamic key."""
        run = self.kept.get(run_id) or self.unfinished.get(run_id)
        if run is None:
            run = TaskRunSeen(run_id, name, flow_run_id)
            if len(self.unfinished) < MOST_UNFINISHED or state.type in FINAL:
                self.unfinished[run_id] = run
        run.name = name
        # From then on a name of the user's own is known.
        if self.keeps_outputs and not run.label and state.type != "PENDING":
            run.label = self._label_for(name, key)
        before = run.last
        if len(run.states) < MOST_STATES or state.type in FINAL:
            run.states.append(state)
        if state.type == "RUNNING" and before is not None and run.starts > 1:
            self.retries += 1
            self.retried += run.starts == 2
        if state.type in FINAL:
            self._ended(run, before, state)
        return run

    def _label_for(self, name: str, key: str) -> str:
        stable = cut_random_part(name, key)
        self.calls_of[stable] += 1
        number = self.calls_of[stable]
        return stable if number == 1 else f"{stable} ({number})"

    def _ended(self, run: TaskRunSeen, before: StateSeen | None, state: StateSeen) -> None:
        if before is not None and before.type in FINAL:
            self.states[before.name] -= 1  # for example a task that completed and was then rolled back
        self.states[state.name] += 1
        self.types[state.name] = state.type
        self.unfinished.pop(run.id, None)
        if len(self.noted) < MOST_IDS:
            self.noted.add(run.id)
        if run.id in self.kept:
            return
        if run.remarkable and self.kept_remarkable < MOST_REMARKABLE:
            self.kept_remarkable += 1
            self.kept[run.id] = run
        elif not run.remarkable and self.kept_ordinary < MOST_ORDINARY:
            self.kept_ordinary += 1
            self.kept[run.id] = run

    def happened(self, one: Happening) -> None:
        self.counts[one.name] += 1
        if len(self.letters) < MOST_IDS:
            note_letter(one, self.letters, self.settled)
        run = self.unfinished.get(str(one.payload.get("task_run_id")))
        if run is not None and one.name == "attempt.refused":
            run.rejected += 1
        if one.name == CALLS_COUNTED:
            self.add_calls(one)
        elif self.counts[one.name] <= MOST_OF_A_KIND:
            self.happenings.append(one)

    def gave(self, label: str, value: Any) -> None:
        """Note the value that a completed task run returned."""
        if label in self.outputs:
            return  # the run was rolled back, which is a second completed state
        if len(self.outputs) >= MOST_OUTPUTS:
            self.outputs_left_out += 1
        else:
            self.outputs[label] = shown(value)


class _Passes:
    """The notes of this process, by flow run and run count."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.notes: OrderedDict[tuple[str, int], RunNotes] = OrderedDict()


_passes = per_process(_Passes)


def shown(value: Any) -> Any:
    """A value as bounded JSON-like data without secrets. If it was cut, the result says so."""
    copy, cut = plain_or_cut(value, depth=_SHOWN_DEPTH, items=_SHOWN_ITEMS)
    left = [_SHOWN_LETTERS]
    content = _within(copy, left)
    return redact_data({"truncated": True, "content": content} if cut or left[0] < 0 else content)


def _within(value: Any, left: list[int]) -> Any:
    """The value with its texts cut to the number of characters that are left."""
    if isinstance(value, str):
        room = max(left[0], 0)
        left[0] -= len(value)
        return value if len(value) <= room else value[:room] + "…"
    if isinstance(value, dict):
        pairs = cast("dict[str, Any]", value)
        return {_within(key, left): _within(item, left) for key, item in pairs.items() if left[0] >= 0}
    if isinstance(value, list):
        return [_within(item, left) for item in cast("list[Any]", value) if left[0] >= 0]
    return value


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


def happened(flow_run_id: str, happening: Happening, count: int = 1) -> None:
    """Note an event of this package."""
    with _passes.lock:
        _of(flow_run_id, count).happened(happening)


def known(flow_run_id: str, count: int | None = None) -> RunNotes | None:
    """The notes of a pass of a flow run. Without `count`: of its last pass in this process."""
    with _passes.lock:
        if count is None:
            count = max((number for run_id, number in _passes.notes if run_id == flow_run_id), default=0)
        return _passes.notes.get((flow_run_id, count))


def forget(passes: Iterable[tuple[str, int]]) -> None:
    """Drop the notes of these passes, each given as a flow run id and a run count."""
    with _passes.lock:
        for key in passes:
            _passes.notes.pop(key, None)


def seen_in(flow_run_ids: Iterable[str]) -> PassFacts:
    """The facts that this process noted about these flow runs, combined."""
    return together(seen_by_pass(flow_run_ids).values())


def seen_by_pass(flow_run_ids: Iterable[str]) -> dict[tuple[str, int], PassFacts]:
    """The facts that this process noted about these flow runs, by flow run id and run count."""
    ids = set(flow_run_ids)
    with _passes.lock:
        return {key: _copied(notes) for key, notes in _passes.notes.items() if key[0] in ids}


def outputs_of(flow_run_id: str) -> tuple[Mapping[str, Any], int]:
    """The values that task runs of the flow run's last pass returned, by name, and how many were left out."""
    notes = known(flow_run_id)
    if notes is None:
        return {}, 0
    with _passes.lock:
        return dict(notes.outputs), notes.outputs_left_out


def _copied(notes: RunNotes) -> PassFacts:
    seen = together([notes])
    runs = [*notes.kept.values(), *notes.unfinished.values()]
    seen.task_runs = [replace(run, states=[*run.states]) for run in runs]
    seen.noted |= notes.unfinished.keys()
    for run in notes.unfinished.values():
        if run.last is not None:
            seen.count(run.last.type, run.last.name)
    return seen


def _of(flow_run_id: str, count: int) -> RunNotes:
    key = (flow_run_id, count)
    notes = _passes.notes.get(key)
    if notes is None:
        notes = _passes.notes[key] = RunNotes()
        _make_room()
    else:
        _passes.notes.move_to_end(key)
    return notes


def _make_room() -> None:
    """Drop old notes. It runs once for each pass of a flow run, not for each row."""
    rows = sum(notes.rows for notes in _passes.notes.values()) if len(_passes.notes) % 50 == 0 else 0
    while len(_passes.notes) > MOST_RUNS or (rows > MOST_ROWS and len(_passes.notes) > 1):
        _, gone = _passes.notes.popitem(last=False)
        rows -= gone.rows
