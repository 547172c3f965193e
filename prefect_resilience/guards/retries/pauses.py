"""Whether the pauses between attempts are kept, which users' own tests may ask not to."""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import contextmanager

_skipping = 0
_changing = threading.Lock()


@contextmanager
def skipped() -> Generator[None, None, None]:
    """While the block goes on, there are none in this process."""
    global _skipping
    with _changing:
        _skipping += 1
    try:
        yield
    finally:
        with _changing:
            _skipping -= 1


def pause(delay: float) -> float:
    """The seconds that are really waited where `delay` was decided."""
    return 0.0 if _skipping else delay
