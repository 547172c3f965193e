"""Logs of a run: each failure is logged once and in the right place, and without secrets."""

from __future__ import annotations

import logging
import sys
from collections import OrderedDict
from collections.abc import Iterable
from contextvars import ContextVar
from functools import cache
from types import TracebackType
from typing import Any
from uuid import UUID

from prefect_resilience.base.outcomes import is_answered_for
from prefect_resilience.errors.context import attached_context
from prefect_resilience.errors.secrets.redact import redact, register_secret
from prefect_resilience.tasks.edge import seams

RUN_LOGGERS = ("prefect.task_runs", "prefect.flow_runs")
"""Prefect's loggers for failed runs. They log the error's text and a traceback with source lines."""
MOST_EXPECTED = 10_000

TRACEBACK = "The error in full:"

_formatter = logging.Formatter()
_expected: OrderedDict[str, None] = OrderedDict()
"""Task runs with a handler for their failure, which was set up before they failed."""
_told_state: ContextVar[object] = ContextVar("prefect_resilience_told_state", default=None)


# -- failures with a handler


def expect_failures(task_runs: Iterable[UUID]) -> None:
    """Note that a handler takes care of a later failure of these task runs of this process."""
    for run in task_runs:
        _expected[str(run)] = None
    while len(_expected) > MOST_EXPECTED:
        _expected.popitem(last=False)


def is_expected(task_run: UUID | str | None) -> bool:
    """Whether a handler takes care of a failure of the current run."""
    return is_answered_for() or (bool(_expected) and str(task_run) in _expected)


def log_failure(
    logger: logging.LoggerAdapter[Any] | logging.Logger, said: str, error: BaseException, *, answered: bool
) -> None:
    """Log the text and the traceback as ERROR. If a handler takes care of the error: the text as WARNING, the
    traceback as DEBUG."""
    if answered:
        logger.warning("%s", said)
        logger.debug(TRACEBACK, exc_info=in_users_code(error))
    else:
        logger.error("%s", said, exc_info=in_users_code(error))


def in_users_code(error: BaseException) -> tuple[type[BaseException], BaseException, TracebackType | None]:
    """The error with its traceback from the first frame of the user's code on; empty without such a frame."""
    trace = error.__traceback__
    ours = f"{__name__.partition('.')[0]}."
    while trace is not None and trace.tb_frame.f_globals.get("__name__", "").startswith(ours):
        trace = trace.tb_next
    return type(error), error, trace


class RunLogFilter(logging.Filter):
    """Drops the engine's records of failures that this package has logged. Failures with a handler become one
    line at WARNING, with the traceback at DEBUG.

    Masks secrets in a record before any handler sees it, its traceback included.
    """

    def filter(self, record: logging.LogRecord) -> bool:
        if record.module in seams.ENGINES and not self._is_needed(record):
            return False
        try:
            message = record.getMessage()
            masked = redact(message)
            if masked != message:
                record.msg, record.args = masked, None
            if record.exc_info and record.exc_info[0] is not None and not record.exc_text:
                # Handlers print exc_text and do not format the exception again.
                record.exc_text = redact(_formatter.formatException(record.exc_info))
        except Exception:  # noqa: BLE001 - the handler reports a message that cannot be formatted
            return True
        return True

    def _is_needed(self, record: logging.LogRecord) -> bool:
        run = getattr(record, "task_run_id", None)
        if record.funcName in seams.FAILED_ATTEMPTS and _is_told(record, run):
            return False
        if record.levelno >= logging.ERROR and "Finished in state Parked(" in record.getMessage():
            record.levelno, record.levelname = logging.INFO, "INFO"
        if record.levelno >= logging.ERROR and is_expected(run):
            _quieten(record)
        return True


def note_logged_state(state: object) -> None:
    """Note that this package has logged a failed state that a task returned. The engine need not log it."""
    _told_state.set(state)


def is_told_of(state: object) -> bool:
    return _told_state.get() is state


def _is_told(record: logging.LogRecord, task_run: Any) -> bool:
    """Whether this package has judged, and so logged, the attempt that the engine is about to end."""
    state = _told_state.get()
    if state is not None and isinstance(record.args, tuple) and any(item is state for item in record.args):
        return True
    error = sys.exc_info()[1]
    context = None if error is None else attached_context(error)
    return context is not None and context.task_run_id == str(task_run)


def _quieten(record: logging.LogRecord) -> None:
    if record.exc_info:
        logger = logging.getLogger(record.name)
        if logger.isEnabledFor(logging.DEBUG):
            fields = {**vars(record), "msg": TRACEBACK, "args": None}
            logger.handle(logging.makeLogRecord({**fields, "levelno": logging.DEBUG, "levelname": "DEBUG"}))
    record.levelno, record.levelname = logging.WARNING, "WARNING"
    record.exc_info = record.exc_text = None


_filter = RunLogFilter()


@cache
def keep_secrets_out_of_logs() -> None:
    """Put the filter on the run loggers of this process. Further calls do nothing."""
    seams.on_secret_read(register_secret)
    for name in RUN_LOGGERS:
        logging.getLogger(name).addFilter(_filter)
