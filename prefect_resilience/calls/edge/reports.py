"""What a guarded call reports: log lines, events and metrics, in a task run or outside of one.

Of calls that are made by the thousand, the first line of a kind is logged, and then at most one a minute.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from logging import ERROR, INFO, WARNING
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from prefect.context import FlowRunContext, TaskRunContext
from prefect.logging.loggers import flow_run_logger, task_run_logger

from prefect_resilience.base.process import per_process
from prefect_resilience.calls.judging import gave_up_told, replaced_message, retry_told
from prefect_resilience.calls.model import Guard, RunContext, RunRecord
from prefect_resilience.durable.effects.current import Replayed
from prefect_resilience.errors.context import ErrorContext
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.guards.decomposition.model import stood_in
from prefect_resilience.guards.fallbacks import Answer
from prefect_resilience.guards.retries.policy import Verdict
from prefect_resilience.telemetry.edge.events import (
    emit,
    error_payload,
    fallback_used,
    retry_scheduled,
    run_failed,
    run_recovered,
)

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

    def left_out(self, kind: object, now: float) -> int | None:
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
    missed = _seldom.left_out((run, *kind), time.monotonic())
    if missed is not None:
        more = f" (and {missed:,} more like this since the last line)" if missed else ""
        log_here().log(level, "%s%s", redact(line), more)


def log_here() -> Log:
    """The log of the current task or flow run, else the package's own."""
    task, flow = TaskRunContext.get(), FlowRunContext.get()
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
    task, flow = TaskRunContext.get(), FlowRunContext.get()
    if flow is not None and flow.flow_run is not None:
        return None if task is None else task.task_run.id, flow.flow_run.id
    return (None, None) if task is None else (task.task_run.id, task.task_run.flow_run_id)


class ReportingRun(RunContext):
    """The part of `RunContext` that task runs and calls outside of one have in common."""

    __slots__ = ()

    guard: Guard

    @property
    def node_id(self) -> str:
        return self.identity["node_id"]

    def log(self, level: int, kind: tuple[Any, ...], line: str, error: BaseException | None = None) -> None:
        """Log a line. `kind`: what it has in common with others; `error`: the failure that it is about."""
        raise NotImplementedError

    def emit(self, happening: str, kind: str, name: str, payload: dict[str, Any]) -> None:
        """Send an event of a decision, or only count it."""
        raise NotImplementedError

    def count(self, context: ErrorContext, *totals: str) -> None:
        """Count a failed attempt, and its call under these totals."""

    def circuit(self) -> str | None:
        """The name of the circuit, for the record of the attempts."""
        return None

    def gives_up_at(self, context: ErrorContext) -> int:
        """The level at which the end of a failed call is logged."""
        raise NotImplementedError

    # Decisions.

    def retrying(self, context: ErrorContext, verdict: Verdict) -> None:
        self.log(
            WARNING, ("retry", context.code), retry_told(cast(RunRecord, self.known()), context, verdict)
        )
        retry_scheduled(self.node_id, context, verdict, self.emit)
        self.count(context)

    def replaced(self, context: ErrorContext, answer: Answer, error: BaseException) -> None:
        fallback = answer.fallback
        stood_in(self.guard.fn, fallback.name, fallback.degraded)
        kind = ("fallback", fallback.name, context.code)
        self.log(WARNING, kind, replaced_message(context, answer), error)
        fallback_used(self.node_id, context, fallback, self.emit, circuit=self.circuit())
        self.count(context, "calls", "fallbacks")

    def recovered(self, record: RunRecord) -> None:
        history, after = record.history, time.monotonic() - record.started
        self.log(INFO, ("recovered",), f"Recovered at attempt {len(history) + 1}, after {after:.1f} s")
        run_recovered(self.node_id, self.identity, history, after, self.emit, circuit=self.circuit())

    def gave_up(self, context: ErrorContext, verdict: Verdict, error: BaseException) -> None:
        kind = ("gave up", context.code)
        self.log(self.gives_up_at(context), kind, gave_up_told(context, verdict), error)
        run_failed(self.node_id, context, verdict, self.emit, circuit=self.circuit())
        self.count(context, "calls", "failures")

    def dividing(self, context: ErrorContext, parts: int, depth: int, most: int) -> None:
        line = f"Decomposing into {parts} parts (depth {depth} of at most {most}), after: {context.summary()}"
        self.log(WARNING, ("decompose", depth), line)
        about = {"parts": parts, "depth": depth, "max_depth": most}
        self.emit("run.decomposed", "task", self.node_id, {**error_payload(context), **about})

    # Effects.

    def ledger(self) -> Ledger:
        from prefect_resilience.durable.effects.ledger import open_ledger

        return open_ledger()

    def marks(self) -> BatchMarks | None:
        if self.identity["task_run_id"] is None and self.identity["flow_run_id"] is None:
            return None  # there may be no Prefect API
        root = self.passed()[0] if self.identity["flow_run_id"] is not None else None
        from prefect_resilience.durable.batches.edge.marks import PrefectMarks
        from prefect_resilience.durable.batches.edge.tags import store_name

        return PrefectMarks(self.batch_id(), root, store_name(self.ledger().store.url))

    def begun_external(self) -> None:
        if (context := TaskRunContext.get()) is not None:
            from prefect_resilience.durable.batches.edge.tags import mark_external

            mark_external(context.task_run, self.ledger().store.url)

    def replayed(self, replayed: Replayed) -> None:
        self.log(INFO, ("replayed",), f"Replayed: {replayed.message}")
        known = {"external_id": replayed.external_id}
        self._emit_effect("effect.replayed", replayed.key, replayed.batch_id, **known)

    def in_doubt(self, key: str, batch_id: str, why: str) -> None:
        line = f"In doubt: the outcome of effect {key!r} in batch {batch_id!r} is unknown: {why}"
        self.log(ERROR, ("in doubt", key), line)
        self._emit_effect("effect.in-doubt", key, batch_id, why=redact(why))

    def overdue(self, key: str, batch_id: str) -> None:
        line = f"The abandoned call of effect {key!r} in batch {batch_id!r} is still running"
        self.log(WARNING, ("overdue", key), line)

    def late(self, said: str) -> None:
        self.log(WARNING, ("late", said), f"Late: {said}")

    def unrecorded(self, why: str) -> None:
        self.log(WARNING, ("unrecorded",), f"This effect is not in the ledger: {why}")

    def _emit_effect(self, happening: str, key: str, batch_id: str, **more: Any) -> None:
        emit(happening, "effect", key, {"key": key, "batch_id": batch_id, **self.identity, **more})
