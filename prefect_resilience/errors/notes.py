"""Notes on exceptions (PEP 678), on Python 3.10 too."""

from __future__ import annotations

from typing import Any


def add_note(error: BaseException, note: str) -> None:
    """Add a note that tracebacks show below the error. Never raises."""
    add: Any = getattr(error, "add_note", None)
    try:
        if add is not None:
            add(note)
        else:
            error.__notes__ = [*getattr(error, "__notes__", ()), note]  # pyright: ignore
    except Exception:  # noqa: BLE001 - an exception that takes no attributes goes without
        return
