"""Passes: one way of the code through its flow, from its beginning to its end or to its crash.

A pass is a list of (run id, how often that run was begun), the outermost first: the flow runs around a task
run and the task runs that it is nested in. A flow that is retried, a run that is recovered, the Retry
button: each begins a run once more, and so a new pass. A loop over the same call does not.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Pass = tuple[tuple[str, int], ...]


def same_pass(earlier: Iterable[Any], now: Iterable[Any]) -> bool:
    """Whether both belong to one pass: they share a run, and none of those that they share was begun anew.

    `earlier` may have come back from JSON, as lists.

    Example:
        >>> same_pass([["f", 1]], (("f", 1),)), same_pass([["f", 1]], (("f", 2),)), same_pass([], ())
        (True, False, False)
    """
    before = {str(run): count for run, count in earlier}
    shared = [(before[run], count) for run, count in now if run in before]
    return bool(shared) and all(was == count for was, count in shared)
