"""SIGTERM while effects run: they get some seconds to end, and no other effect begins.

The signal reaches the main thread alone. An effect there holds it back until its call has ended, and the end
of a flow run waits for effects in other threads. Where neither Prefect nor the user handles SIGTERM, it ends
the process at once, as in every Python program.
"""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Generator
from contextlib import contextmanager
from time import monotonic, sleep
from types import FrameType
from typing import Any

from prefect_resilience.base import places
from prefect_resilience.base.drive import Steps, sleep_for
from prefect_resilience.base.process import in_forked_child
from prefect_resilience.durable.effects.current import in_progress
from prefect_resilience.durable.effects.owner import has_reports

PAUSE = 0.05
"""Seconds between two looks at the running effects."""


class ProcessEnds(BaseException):
    """An effect was not begun, because SIGTERM ends its process."""


def in_main_thread() -> bool:
    """Whether this code runs in the thread that signals reach."""
    return threading.current_thread() is threading.main_thread()


class RunningEffects:
    """The calls of effects that run in this process, and a SIGTERM that waits for their end.

    Its signal handler may interrupt the main thread anywhere, so there is no lock.
    """

    def __init__(self) -> None:
        self.seconds: float | None = None
        """The grace that the flow run allows; None for the setting."""
        self.in_threads: set[int] = set()
        self._in_main: set[int] = set()
        self._earlier: Callable[[int, FrameType | None], Any] | None = None
        """The handler of SIGTERM while `_hear` takes its place."""
        self._until: float | None = None
        """The end of the grace; None before a SIGTERM."""
        self._timer: threading.Timer | None = None
        """Ends the grace of a SIGTERM that `_hear` holds back."""

    def forget(self) -> None:
        """A forked process has no calls of its parent, so its signals go to the earlier handler at once."""
        self.in_threads.clear()
        self._in_main.clear()

    def begin_run(self, seconds: float | None) -> None:
        """A flow run begins, with its own grace or that of the setting."""
        self.seconds, self._until = seconds, None

    @contextmanager
    def including(self, call: int) -> Generator[None]:
        """A call runs within the block. In the main thread, SIGTERM waits for its end."""
        in_main = in_main_thread()
        calls = self._in_main if in_main else self.in_threads
        calls.add(call)
        try:
            earlier = signal.getsignal(signal.SIGTERM)
            if in_main and self._earlier is None and callable(earlier):
                self._earlier = earlier
                signal.signal(signal.SIGTERM, self._hear)
            yield
        finally:
            calls.discard(call)
            if in_main and not self._in_main and self._earlier is not None:
                if self._timer is None:
                    self._release()
                else:
                    self._pass_on(signal.SIGTERM, None)

    def wait_for_turn(self) -> Steps[None]:
        """Called before an effect begins. While the process ends, only an effect inside another one does."""
        while in_progress.get() is None and self._rest() > 0:
            if not in_main_thread():
                raise ProcessEnds("not begun: SIGTERM ends this process")
            if self._earlier is None:  # code that runs after the signal was passed on
                return
            yield from sleep_for(PAUSE)

    def wait(self) -> int:
        """SIGTERM ends the flow run: wait for the effects in other threads, at most until the grace ends.
        Returns how many still run."""
        self._begin_grace()
        while (running := len(self.in_threads)) + has_reports() and self._rest() > 0:
            sleep(PAUSE)
        return running

    def _rest(self) -> float:
        return 0.0 if self._until is None else self._until - monotonic()

    def _begin_grace(self) -> float:
        seconds = places.grace_seconds() if self.seconds is None else self.seconds
        self._until = self._until or monotonic() + seconds
        return seconds

    def _hear(self, number: int, frame: FrameType | None) -> None:
        if not self._in_main or self._timer is not None:  # the timer's signal, or a second one
            self._pass_on(number, frame)
            return
        self._timer = threading.Timer(self._begin_grace(), os.kill, (os.getpid(), signal.SIGTERM))
        self._timer.daemon = True
        self._timer.start()

    def _pass_on(self, number: int, frame: FrameType | None) -> None:
        """Call the earlier handler. If it returns, the process goes on."""
        if (earlier := self._release()) is not None:
            earlier(number, frame)
            self._until = None

    def _release(self) -> Callable[[int, FrameType | None], Any] | None:
        earlier, self._earlier = self._earlier, None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if signal.getsignal(signal.SIGTERM) == self._hear:
            signal.signal(signal.SIGTERM, earlier)
        return earlier


running: RunningEffects = RunningEffects()
in_forked_child(running.forget)
