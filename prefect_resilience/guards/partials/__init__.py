"""What was produced before a failure: kept within bounds, and handed on to whoever takes over."""

from __future__ import annotations

from prefect_resilience.guards.partials.current import (
    keep_partial,
    last_violations,
    partial_output,
    partial_results,
    previous_error,
    previous_partial,
)

__all__ = [
    "keep_partial",
    "last_violations",
    "partial_output",
    "partial_results",
    "previous_error",
    "previous_partial",
]
