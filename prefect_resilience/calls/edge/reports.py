"""What a guarded call reports: log lines, events and metrics, in a task run or outside of one.

Of calls that are made by the thousand, the first line of a kind is logged, and then at most one a minute.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from sys import modules
from typing import TYPE_CHECKING, Any, ClassVar, Protocol
from uuid import UUID, uuid4

from prefect_resilience.base.edge.current_settings import run_contexts
from prefect_resilience.base.process import per_process
from prefect_resilience.calls.model import RunContext, RunRecord
from prefect_resilience.calls.spans import SDK, add_event
from prefect_resilience.durable.effects.current import CallStart
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.guards.partials import Carried, Notes
from prefect_resilience.telemetry.payloads import CallReport

if TYPE_CHECKING:
    from prefect_resilience.durable.effects.ledger import Ledger
    from prefect_resilience.durable.effects.opening import BatchMarks

EVERY = 60.0
MOST_KINDS = 1_000
Log = logging.Logger | logging.LoggerAdapter[Any]

logger: logging.Logger = logging.getLogger("prefect_resilience.calls")


class Seldom:
    """When each kind of line was last logged, and how many of it were left out since."""

    def __init__(self, every: float = EVERY) -> None:
        self._every = every
        self._kinds: OrderedDict[object, tuple[float, int]] = OrderedDict()
        self._lock = threading.Lock()

    def lines_omitted(self, kind: object, now: float) -> int | None:
        """The lines of this kind that were left out since the last one; None: leave this one out too."""
        with self._lock:
            at, missed = self._kinds.get(kind, (None, 0))
            if at is not None and now - at < self._every:
                self._kinds[kind] = (at, missed + 1)
                return None
            self._kinds[kind] = (now, 0)
            self._kinds.move_to_end(kind)
            if len(self._kinds) > MOST_KINDS:
                self._kinds.popitem(last=False)
            return missed


_seldom = per_process(Seldom)


def say(level: int, kind: tuple[Any, ...], line: str) -> None:
    """Log a line, to the current run if there is one, unless one of this kind was logged within a minute."""
    run = run_here()
    if run == (None, None) and not logger.isEnabledFor(level):
        return
    missed = _seldom.lines_omitted((run, *kind), time.monotonic())
    if missed is not None:
        more = f" (and {missed:,} more like this since the last line)" if missed else ""
        log_here().log(level, "%s%s", redact(line), more)


def log_here() -> Log:
    """The log of the current task or flow run, else the package's own."""
    flow, task = run_contexts()
    if task is None and flow is None:
        return logger
    from prefect.logging.loggers import flow_run_logger, task_run_logger

    try:
        if task is not None:
            return task_run_logger(task_run=task.task_run, task=task.task)
        if flow is not None and flow.flow_run is not None:
            return flow_run_logger(flow_run=flow.flow_run, flow=flow.flow)
    except Exception:  # noqa: BLE001 - a log that cannot be made must not fail the call
        return logger
    return logger


def run_here() -> tuple[UUID | None, UUID | None]:
    """The ids of the current task run and flow run."""
    flow, task = run_contexts()
    if flow is not None and flow.flow_run is not None:
        return None if task is None else task.task_run.id, flow.flow_run.id
    return (None, None) if task is None else (task.task_run.id, task.task_run.flow_run_id)


def emit_effect(happening: str, name: str, payload: dict[str, Any]) -> None:
    """Send an event of an effect, which is seldom."""
    from prefect_resilience.telemetry.edge.events import emit

    emit(happening, "effect", name, payload)


class ReportingRun(RunContext, Protocol):
    """The part of `RunContext` that task runs and calls outside of one have in common."""

    __slots__ = ()

    carried: Carried | None
    """The notes of the child process that makes the call."""
    span: Any = None
    parking: Any = None
    emit: ClassVar[staticmethod[..., None]]
    """Sends an event of a decision, or only counts it."""

    def log(self, report: CallReport) -> None:
        """Log the line of a report."""

    def report(self, report: CallReport) -> None:
        self.log(report)
        for event in report.events:
            if event.kind == "effect":
                emit_effect(event.happening, event.name, event.payload)
            else:
                self.emit(*event)
            if SDK in modules:
                add_event(self, event.happening, event.payload)

    def add_attempt_start(self, record: RunRecord, started: float) -> RunRecord:
        """The record, with what an attempt that began then adds to it."""
        if not record.history:  # nested code may have created it after the attempt began
            record.started = min(record.started, started)
        if self.carried is not None:
            self.carried.read(record.notes)
            self.carried = None
        return record

    def notes(self, make: bool) -> Notes | None:
        """What the function kept for its next attempt. None if nothing is kept yet and `make` is false."""
        record = self.record(time.monotonic()) if make else self.record_so_far()
        return None if record is None else record.notes

    # Effects.

    def start(self) -> CallStart:
        record = self.record(time.monotonic())
        record.start = record.start or CallStart(uuid4().hex)
        return record.start

    def ledger(self) -> Ledger:
        from prefect_resilience.durable.effects.ledger import open_ledger

        return open_ledger()

    def marks(self) -> BatchMarks | None:
        if self.identity["task_run_id"] is None and self.identity["flow_run_id"] is None:
            return None  # there may be no Prefect API
        return self.marks_under(self.passed()[0] if self.identity["flow_run_id"] is not None else None)

    def marks_under(self, root: tuple[str, int] | None) -> BatchMarks:
        """The marks of the batch on the outermost flow run."""
        from prefect_resilience.durable.batches.edge.marks import PrefectMarks
        from prefect_resilience.durable.batches.edge.tags import store_name

        return PrefectMarks(self.batch_id(), root, store_name(self.ledger().store.url))

    def note_external_begun(self, store_url: str) -> None:
        if (context := run_contexts()[1]) is not None:
            from prefect_resilience.durable.batches.edge.tags import mark_external

            mark_external(context.task_run, store_url)
