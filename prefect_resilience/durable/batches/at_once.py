"""Several requests beside each other, with a time by which all is over: for what must not hold anybody up."""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Hashable, Mapping
from contextvars import copy_context
from typing import TypeVar

from prefect_resilience.errors.secrets.redact import redact

logger: logging.Logger = logging.getLogger("prefect_resilience")

K = TypeVar("K", bound=Hashable)
T = TypeVar("T")

AT_ONCE = 4
TRIES = 3
PAUSE = 0.2
"""A job that fails is tried so often, with so many seconds in between: a server on SQLite refuses one write
behind another."""


def answers(jobs: Mapping[K, Callable[[], T]], until: float, at_once: int = AT_ONCE) -> dict[K, T]:
    """What the jobs answer by `until`, a reading of `time.monotonic()`; those without an answer are missing.

    They run in daemon threads, in the caller's context: one that hangs holds up neither the caller nor the
    end of the process. Never raises what a job raises.
    """
    waiting = deque(jobs.items())
    found: dict[K, T] = {}
    busy = threading.Semaphore(0)

    def work() -> None:
        while True:
            try:
                key, job = waiting.popleft()
            except IndexError:
                break
            for left in reversed(range(TRIES)):
                if time.monotonic() >= until:
                    break
                try:
                    found[key] = job()
                    break
                except Exception as failure:  # noqa: BLE001 - an answer that is missing is what it comes to
                    logger.debug("a request failed: %s", redact(repr(failure)))
                    if left:
                        time.sleep(PAUSE)
        busy.release()

    threads = min(at_once, len(jobs))
    for _ in range(threads):
        run = copy_context().run
        threading.Thread(target=run, args=(work,), name="prefect-resilience-asks", daemon=True).start()
    for _ in range(threads):
        if not busy.acquire(timeout=max(until - time.monotonic(), 0.0)):
            break
    return {key: found[key] for key in jobs if key in found}
