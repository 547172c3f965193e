"""The run that this code is in, without importing Prefect: where a run goes on, it is imported already."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from prefect.context import FlowRunContext, TaskRunContext


def task_context() -> TaskRunContext | None:
    """Prefect's context of the task run around this code."""
    try:
        return sys.modules["prefect.context"].TaskRunContext.get()
    except (KeyError, AttributeError):  # not imported, or in the middle of it
        return None


def flow_context() -> FlowRunContext | None:
    """Prefect's context of the flow run around this code."""
    try:
        return sys.modules["prefect.context"].FlowRunContext.get()
    except (KeyError, AttributeError):
        return None


def is_in_run() -> bool:
    """Whether this code runs inside a flow or task run."""
    return flow_context() is not None or task_context() is not None
