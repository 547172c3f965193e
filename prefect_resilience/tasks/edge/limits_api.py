"""The client of Prefect's API for shared limits, and the holder of a slot as Prefect shows it."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from uuid import UUID

from prefect_resilience.base.process import in_forked_child
from prefect_resilience.guards.limits.shared import ApiBusy

if TYPE_CHECKING:
    import httpx
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.settings import Settings

API_SECONDS, CONNECT_SECONDS = 5.0, 2.0
"""Timeouts of one request to Prefect's API, and of each of its four attempts to connect."""


def lease_holder(run: tuple[str, UUID] | None) -> Any:
    """The current run, which Prefect shows as the holder of a slot."""
    from prefect.client.schemas.objects import ConcurrencyLeaseHolder

    return None if run is None else ConcurrencyLeaseHolder.model_validate({"type": run[0], "id": run[1]})


@contextmanager
def prefect_client() -> Generator[SyncPrefectClient, None, None]:
    """A client of the API of the current run, kept by the process, which makes no retries of its own."""
    import httpx
    from prefect.client.orchestration import get_client
    from prefect.context import SettingsContext, get_settings_context
    from prefect.settings import PREFECT_API_AUTH_STRING, PREFECT_API_KEY, PREFECT_API_URL

    context = get_settings_context()
    with SettingsContext(profile=context.profile, settings=_without_retries(context.settings)):
        key = (PREFECT_API_URL.value(), str(PREFECT_API_KEY.value()), str(PREFECT_API_AUTH_STRING.value()))
        client = _clients.get(key)
        if client is None:
            timeout = httpx.Timeout(API_SECONDS, connect=CONNECT_SECONDS)
            hooks = {"response": [_refuse_busy]}
            client = get_client(httpx_settings={"timeout": timeout, "event_hooks": hooks}, sync_client=True)
            client = _clients.setdefault(key, client.__enter__())
        try:
            yield client
        except Exception as error:
            if getattr(error, "response", None) is None and getattr(error, "http_exc", None) is None:
                _clients.pop(key, None)  # no answer at all: the next client opens a new connection
            raise


def _refuse_busy(response: httpx.Response) -> None:
    """Raise for a busy API before Prefect's client sleeps."""
    if response.status_code in (408, 429, 502, 503):
        raise ApiBusy(f"{response.status_code} of {response.request.method} {response.request.url.path}")


def _without_retries(settings: Settings) -> Settings:
    """The same settings without the client's retries, which would delay a call for up to a minute."""
    global _quick
    from prefect.settings import PREFECT_CLIENT_MAX_RETRIES

    if _quick is None or _quick[0] is not settings:
        _quick = (settings, settings.copy_with_update(updates={PREFECT_CLIENT_MAX_RETRIES: 0}))
    return _quick[1]


_clients: dict[tuple[str | None, str, str], SyncPrefectClient] = {}
_quick: tuple[Settings, Settings] | None = None  # making them takes longer than a request

in_forked_child(_clients.clear)  # writes of a child into its parent's connections would corrupt both
