"""An awaitable with a deadline."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import TypeVar

import anyio

from prefect_resilience.errors.exceptions import AttemptTimeout

T = TypeVar("T")


async def acall_with_deadline(
    awaitable_factory: Callable[[], Awaitable[T]], seconds: float, *, what: str = "the attempt"
) -> T:
    """What the awaitable gives, if it does so within `seconds`; else it is cancelled.

    The awaitable runs in the calling task. Cancelling works at its next `await`, and again at each one
    after it while the code goes on, so code that blocks the event loop, or shields itself, or catches the
    cancellation for good, ends late by just that long. If such code returns a value after the deadline,
    the value is handed on: the work was done. A `TimeoutError` of the code's own, and a cancellation from
    outside, pass through as they are.

    Raises `AttemptTimeout`, and whatever the awaitable raises.
    """
    with anyio.move_on_after(seconds) as scope:
        return await awaitable_factory()
    # The scope swallows nothing but its own cancellation, so this is the deadline.
    assert scope.cancelled_caught
    raise AttemptTimeout(seconds, what)
