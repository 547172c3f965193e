"""The URLs of the default stores and the grace, in a module that costs nothing to import.

They come from the settings, which the lower rooms cannot import: `prefect_resilience.wiring` sets these
functions. They are called when a store is needed, not before.
"""

from __future__ import annotations

from collections.abc import Callable

circuits: Callable[[], str]
documents: Callable[[], str]
grace_seconds: Callable[[], float]
