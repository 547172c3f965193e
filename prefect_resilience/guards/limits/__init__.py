"""Limits: how many calls at a time, how many in a period, and hedged calls."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from uuid import UUID

    from prefect.client.orchestration import SyncPrefectClient

prefect_client: Callable[[], AbstractContextManager[SyncPrefectClient]]
"""A client of the API of the current run. `prefect_resilience.wiring` sets this and the two below."""

lease_holder: Callable[[tuple[str, UUID] | None], Any]
"""The holder that Prefect shows for a run's slot."""

root_run: Callable[[], str | None]
"""The id of the outermost run around this code; None outside of runs."""
