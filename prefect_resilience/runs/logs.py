"""Keep secrets out of what Prefect logs for a run, and see the values of its Secret blocks."""

from __future__ import annotations

import functools
import logging
from typing import Any

from prefect.blocks.system import Secret

from prefect_resilience.errors.redact import redact, register_secret

RUN_LOGGERS = ("prefect.task_runs", "prefect.flow_runs")
"""Where Prefect logs a failed run: with the error's text, and with a traceback that shows source lines."""

_formatter = logging.Formatter()


class RedactingFilter(logging.Filter):
    """Masks secrets in a record before any handler sees it, its traceback included."""

    def filter(self, record: logging.LogRecord) -> bool:
        try:
            self._mask(record)
        except Exception:  # noqa: BLE001 - a message that cannot be formatted is reported by the handler
            return True
        return True

    def _mask(self, record: logging.LogRecord) -> None:
        message = record.getMessage()
        masked = redact(message)
        if masked != message:
            record.msg, record.args = masked, None
        if record.exc_info and record.exc_info[0] is not None and not record.exc_text:
            # Handlers print exc_text rather than format the exception again.
            record.exc_text = redact(_formatter.formatException(record.exc_info))


_filter = RedactingFilter()
_kept = False


def keep_secrets_out_of_logs() -> None:
    """Put the filter on Prefect's run loggers of this process; calling it again does nothing."""
    global _kept
    if _kept:
        return
    _kept = True
    watch_secret_blocks()
    for name in RUN_LOGGERS:
        logger = logging.getLogger(name)
        if _filter not in logger.filters:
            logger.addFilter(_filter)


def watch_secret_blocks() -> None:
    """Learn the value of each Secret block as it is read, since nothing else of it is left by then.

    Prefect has no hook for this, so `Secret.get` is put in an envelope, once.
    """
    read: Any = vars(Secret)["get"]
    if hasattr(read, "__wrapped__"):
        return

    @functools.wraps(read)
    def get(self: Secret[Any]) -> Any:
        value = read(self)
        for text in _texts(value):
            register_secret(text)
        return value

    setattr(Secret, "get", get)  # noqa: B010


def _texts(value: Any) -> list[str]:
    if isinstance(value, dict):
        return [text for item in value.values() for text in _texts(item)]  # pyright: ignore[reportUnknownVariableType]
    return [str(value)] if isinstance(value, (str, int)) and not isinstance(value, bool) else []
