"""How long a caller of a limit waits: for a place, and for a server that cannot answer just now.

Pure functions, in seconds. `max_wait` is what the limit's author wrote; None waits for ever, with two bounds.
"""

from __future__ import annotations

FOR_EVER = float("inf")

OVERDUE_SECONDS = 60.0
"""The wait without a `max_wait` while every place is held by an overdue call, which may never end."""

SERVER_SECONDS = 60.0
"""The wait without a `max_wait` for a server that does not answer."""

LEAST_SERVER_SECONDS = 2.0
"""The shortest wait for a server: a busy one refuses a question, and answers the next."""


def for_place(max_wait: float | None, waited: float, stuck: float | None) -> float:
    """How much longer to wait for a place; 0 or less is not at all.

    waited: since the caller came. stuck: since every place is held by an overdue call; None: not so.

    Example:
        >>> for_place(5, 2, None), for_place(None, 100, None), for_place(None, 100, 10)
        (3, inf, 50.0)
    """
    if max_wait is not None:
        return max_wait - waited
    return FOR_EVER if stuck is None else OVERDUE_SECONDS - min(waited, stuck)


def for_server(max_wait: float | None, waited: float, silent: float) -> float:
    """How much longer to wait for the server before the limit holds in this process alone.

    waited: since the caller came. silent: since the server did not answer; infinite when waiting is no use.

    Example:
        >>> for_server(5, 1, 1), for_server(0, 0, 0.5), for_server(None, 500, 10)
        (4, 1.5, 50.0)
    """
    if max_wait is None:
        return SERVER_SECONDS - silent
    least = LEAST_SERVER_SECONDS - silent
    return max(least, min(max_wait - silent, max_wait - waited))
