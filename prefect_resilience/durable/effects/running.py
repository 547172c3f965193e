"""The life of one call of an effect's function: whether it was entered, and whether anything of it still
runs.

An attempt may be over long before its call: a thread that was left at its deadline goes on, and so does one
that `asyncio.to_thread` started for a coroutine that was cancelled. Such a call is overdue. It owns its
effect until it has ended, and what it comes to is recorded then.
"""

from __future__ import annotations

import asyncio
import functools
import gc
import threading
import weakref
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from prefect_resilience.errors.exceptions import NotSent

TIMERS = 1_000


@dataclass(frozen=True, slots=True)
class CallOutcome:
    """What a call came to: the value that it returned, or its error."""

    returned: bool
    value: Any = None
    error: BaseException | None = None


@dataclass(slots=True)
class RunningCall:
    """One call of the function. `watched` goes around it, in the thread or the task in which it runs."""

    entered: bool = False
    interrupted: bool = False
    """Whether a coroutine was cancelled: what it had started in threads may go on."""
    _outcome: CallOutcome | None = None
    _late: Callable[[CallOutcome], None] | None = None
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def watched(self, fn: Callable[..., Any], *, isasync: bool) -> Callable[..., Any]:
        """The function, which tells here when it begins and when it ends."""
        if isasync:

            @functools.wraps(fn)
            async def run_async(*args: Any, **kwargs: Any) -> Any:
                self._begin()
                try:
                    value = await fn(*args, **kwargs)
                except asyncio.CancelledError as error:
                    # Its frames hold timers, and these the contexts of the call, for as long as it is kept.
                    error.__traceback__ = None
                    self.interrupted = True
                    self._end(CallOutcome(False, error=error))
                    raise
                except BaseException as error:
                    self._end(CallOutcome(False, error=error))
                    raise
                self._end(CallOutcome(True, value))
                return value

            return run_async

        @functools.wraps(fn)
        def run(*args: Any, **kwargs: Any) -> Any:
            self._begin()
            try:
                value = fn(*args, **kwargs)
            except BaseException as error:
                self._end(CallOutcome(False, error=error))
                raise
            self._end(CallOutcome(True, value))
            return value

        return run

    def unwatched(self) -> None:
        """The function runs where it cannot be watched, and has ended with its attempt."""
        self.entered, self._outcome = True, CallOutcome(False)

    def in_child(self) -> Callable[[], None]:
        """The function runs in a child process, where it ends with its attempt. What is returned has to be
        called right before it begins."""
        self._outcome = CallOutcome(False)
        return partial(setattr, self, "entered", True)

    @property
    def returned(self) -> CallOutcome | None:
        """What the function returned, whatever its attempt came to; None while and where it did not."""
        outcome = self._outcome
        return outcome if outcome is not None and outcome.returned else None

    def leave(self, late: Callable[[CallOutcome], None]) -> bool:
        """The attempt is over. Whether its call still runs: then `late` is told what it comes to, in its
        thread.

        A call that has not begun by now never does.
        """
        with self._lock:
            if self._outcome is not None or not self.entered:
                self._late = late
                return False
            self._late = late
            return True

    def _begin(self) -> None:
        with self._lock:
            if self._late is not None:
                raise NotSent("the attempt was over before the call began")
            self.entered = True

    def _end(self, outcome: CallOutcome) -> None:
        with self._lock:
            # Its traceback would hold this frame, which holds this object.
            self._outcome = outcome if outcome.returned else CallOutcome(False)
            late = self._late
        if late is not None:
            late(outcome)


def when_gone(presence: weakref.ref[Any], then: Callable[[], None]) -> bool:
    """Whether nothing holds the object any more; else `then` is called, once, when nothing does."""
    there = presence()
    if there is None:
        return True
    del there
    gc.collect()
    there = presence()
    if there is None:
        return True
    reference: list[weakref.ref[Any]] = []

    def gone(_: weakref.ref[Any]) -> None:
        _waiting.discard(reference[0])
        then()

    reference.append(weakref.ref(there, gone))
    _waiting.add(reference[0])
    return False


_waiting: set[weakref.ref[Any]] = set()


def drop_cancelled_timers() -> None:
    """Let the event loop forget its cancelled timers, each of which holds the context that it was made in.

    A loop does so in its next turn when most of its timers are cancelled, so it gets that many.
    """
    loop = asyncio.get_running_loop()
    for _ in range(TIMERS):
        loop.call_later(3600.0, _nothing).cancel()


async def next_turn() -> None:
    """Let the event loop go round."""
    await asyncio.sleep(0)
    await asyncio.sleep(0)


def _nothing() -> None:
    return
