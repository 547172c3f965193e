"""The document of a circuit: what a new one is, and whether what a store returned is one."""

from __future__ import annotations

import math
from typing import Any, cast, get_args

from prefect_resilience.guards.circuits import adaptive, window
from prefect_resilience.guards.circuits.model import CircuitState

CircuitDocument = dict[str, Any]

HISTORY_KEPT = 24
"""So many of the latest generations are in a document, in some 50 bytes each."""

_STATES = get_args(CircuitState)
_COUNTS = (
    "generation",
    "failures_in_row",
    "successes",
    "slow_successes",
    "probe_failures",
    "unanswered",
    "openings",
)


def new() -> CircuitDocument:
    """The document of a circuit that nobody has called yet."""
    return {
        "state": "closed",
        "generation": 1,
        "failures_in_row": 0,
        "successes": 0,
        "slow_successes": 0,
        "probe_failures": 0,
        "unanswered": 0,
        "window": None,
        "baseline": None,
        "opened_at": None,
        "retry_at": None,
        "hold_until": None,
        "openings": 0,
        "leases": {},
        "reason": None,
        "last_error": None,
        "history": [],
        "updated_at": 0.0,
    }


def remember(document: CircuitDocument, now: float) -> None:
    """Note in the history since when the document is in its state, under its generation, and until when.

    A generation is noted once, since it began and as it stands now; twice where it was forced again after its
    time had come, so that calls went through in between.
    """
    generation, state, retry_at = document["generation"], document["state"], document["retry_at"]
    history: list[list[Any]] = document["history"]
    goes_on = bool(history) and history[-1][0] == generation and not _is_over(history[-1], now)
    since = history[-1][1] if goes_on else round(now, 3)
    before = history[:-1] if goes_on else history
    document["history"] = [*before, [generation, since, state, retry_at]][-HISTORY_KEPT:]


def _is_over(entry: list[Any], now: float) -> bool:
    return entry[3] is not None and entry[3] <= now


def read(value: object) -> CircuitDocument:
    """A document as a store returned it; a new one when it is none, or not ours, or damaged."""
    # An older version wrote fewer fields: those have the values of a new document.
    written = cast("CircuitDocument", value) if isinstance(value, dict) else {}
    document = {**new(), **written}
    if not _is_history(document["history"]):
        document["history"] = []
    times = (document.get(key) for key in ("opened_at", "retry_at", "hold_until"))
    texts = (document.get(key) for key in ("reason", "last_error"))
    leases = document.get("leases")
    whole = (
        document.get("state") in _STATES
        and all(_is_count(document.get(key)) for key in _COUNTS)
        and all(time is None or _is_time(time) for time in times)
        and all(text is None or isinstance(text, str) for text in texts)
        and _is_time(document.get("updated_at"))
        and isinstance(leases, dict)
        and all(_is_lease(lease) for lease in cast("dict[str, Any]", leases).values())
        and (document.get("window") is None or window.is_window(document["window"]))
        and (document.get("baseline") is None or adaptive.is_baseline(document["baseline"]))
        and (document["state"] != "open" or document.get("retry_at") is not None)
    )
    return document if whole else new()


def _is_count(value: object) -> bool:
    return isinstance(value, int) and value >= 0


def _is_time(value: object) -> bool:
    return isinstance(value, int | float) and math.isfinite(value)


def _is_history(value: object) -> bool:
    entries = cast("list[Any]", value) if isinstance(value, list) else [None]
    return all(isinstance(entry, list) and _is_entry(cast("list[Any]", entry)) for entry in entries)


def _is_entry(entry: list[Any]) -> bool:
    if len(entry) != 4 or entry[2] not in _STATES:
        return False
    return _is_count(entry[0]) and _is_time(entry[1]) and (entry[3] is None or _is_time(entry[3]))


def _is_lease(value: object) -> bool:
    times = cast("list[Any]", value) if isinstance(value, list) else []
    return len(times) == 2 and all(_is_time(time) for time in times)
