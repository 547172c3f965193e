"""A client of the Prefect API for what goes on beside a run, and after it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from prefect.client.orchestration import get_client

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.actions import ArtifactCreate


def own_client() -> SyncPrefectClient:
    """A client of its own, to be entered.

    The one that Prefect keeps for a run is closed at its end, also for a thread that goes on in the run's
    context. Other settings than that one has, even empty ones, make it another.
    """
    return get_client(sync_client=True, httpx_settings={})


def create_artifact(client: SyncPrefectClient, artifact: ArtifactCreate) -> None:
    """`client.create_artifact` without its event: while the process ends, Prefect would log that it cannot be
    sent as an error with its traceback."""
    client.request(
        "POST", "/artifacts/", json=artifact.model_dump(mode="json", exclude_unset=True)
    ).raise_for_status()
