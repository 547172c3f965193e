"""Prefect states, read by shape: nothing here imports Prefect."""

from __future__ import annotations

from typing import Any, cast

from prefect_resilience.errors.classify.shapes import read

_TYPES = frozenset(
    "SCHEDULED PENDING RUNNING COMPLETED FAILED CANCELLED CRASHED PAUSED CANCELLING".split()  # noqa: SIM905
)


def state_type(source: object) -> str | None:
    """The type of a Prefect state ("FAILED", ...), or None when this is no state."""
    if isinstance(source, BaseException | str):
        return None
    kind = read(source, "type")
    kind = read(kind, "value") or kind
    if isinstance(kind, str) and kind in _TYPES and isinstance(read(source, "name"), str | None):
        return kind
    return None


def state_data(state: object) -> Any:
    """What a state carries, taken out of its ResultRecord where there is one."""
    data = read(state, "data")
    if isinstance(data, BaseException | str | list | tuple | None) or state_type(data):
        return cast("Any", data)
    result = read(data, "result")
    return data if result is None else result


def state_error(state: object) -> BaseException | None:
    """The exception that a state carries, in itself or in its ResultRecord, else None."""
    data = state_data(state)
    return data if isinstance(data, BaseException) else None
