"""Where circuits and documents live that were given no store.

Prefect's settings decide, which the lower rooms do not know: `prefect_resilience/__init__.py` sets these two.
They are asked whenever a store is needed, not before.
"""

from __future__ import annotations

from collections.abc import Callable

circuits: Callable[[], str]
documents: Callable[[], str]
