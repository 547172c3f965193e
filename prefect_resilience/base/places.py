"""The URLs of the default stores of circuits and documents.

They come from the settings, which the lower layers cannot import: `prefect_resilience/__init__.py` sets these
two functions. They are called when a store is needed, not before.
"""

from __future__ import annotations

from collections.abc import Callable

circuits: Callable[[], str]
documents: Callable[[], str]
