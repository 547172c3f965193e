"""Notes on exceptions (PEP 678), on Python 3.10 too."""

from __future__ import annotations


def add_note(error: BaseException, note: str) -> None:
    """Add a note that tracebacks show below the error. Never raises: not every exception takes one."""
    try:
        error.__notes__ = [*getattr(error, "__notes__", ()), note]  # pyright: ignore[reportAttributeAccessIssue]
    except Exception:  # noqa: BLE001 - an exception with its own __setattr__
        return
