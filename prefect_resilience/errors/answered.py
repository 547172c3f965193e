"""Whether somebody answers for what fails here, such as a fallback or a handler: then it is no alarm."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from contextvars import ContextVar

_answered: ContextVar[bool] = ContextVar("prefect_resilience_answered", default=False)


@contextmanager
def answered_for() -> Generator[None, None, None]:
    """Somebody looks at each failure of the runs that begin in this block, and raises it if it counts."""
    before = _answered.set(True)
    try:
        yield
    finally:
        _answered.reset(before)


def is_answered_for() -> bool:
    return _answered.get()
