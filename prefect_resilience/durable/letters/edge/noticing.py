"""Calls that succeed when their flow run is run again: the letter of an earlier pass is settled."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable
from datetime import datetime, timezone

from prefect_resilience.durable.letters import calls
from prefect_resilience.durable.letters.capture import batch_digest
from prefect_resilience.durable.letters.edge.configured import queue_of
from prefect_resilience.durable.letters.edge.known import tell_settled
from prefect_resilience.durable.letters.model import DeadLetter, Pass, Starts

MOST_PASSES = 500
_before: OrderedDict[tuple[Starts, str], set[str]] = OrderedDict()
"""What calls there were letters of when a pass of a flow run began here. One that comes later is of a failure
in this very pass, or in another run."""


def settle_call(
    starts: Starts, batch_id: str | None, identity: Callable[[], str], task_run_id: str | None
) -> DeadLetter | None:
    """Settle the letter of a call that has succeeded in this place, where an earlier pass left one.

    The store is asked once in each pass, and `identity` only if the batch has letters. May raise
    StoreUnavailable.
    """
    letters = _letters_before(starts, batch_id)
    if not letters or (call := identity()) not in letters:
        return None
    one = Pass(at=datetime.now(timezone.utc), outcome="succeeded", starts=starts, task_run_id=task_run_id)
    letter = queue_of().call_succeeded(call, one)
    if letter is not None:
        tell_settled(letter)
    return letter


def _letters_before(starts: Starts, batch_id: str | None) -> set[str]:
    key = (starts, batch_digest(batch_id))
    if key not in _before:
        _before[key] = calls.in_batch(queue_of().store, key[1])
        while len(_before) > MOST_PASSES:
            _before.popitem(last=False)
    return _before[key]
