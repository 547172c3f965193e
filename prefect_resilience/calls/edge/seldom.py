"""Log lines of calls that are made by the thousand: the first of a kind, and then at most one a minute."""

from __future__ import annotations

import logging
import threading
import time
from collections import OrderedDict
from typing import Any
from uuid import UUID

from prefect.context import FlowRunContext, TaskRunContext
from prefect.logging.loggers import flow_run_logger, task_run_logger

from prefect_resilience.base.process import per_process
from prefect_resilience.errors.secrets.redact import redact

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
