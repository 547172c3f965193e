"""Requests of the report to the Prefect API, a few at a time."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, TypeVar, cast

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.exceptions import PrefectHTTPStatusError

from prefect_resilience.base.text import one_line
from prefect_resilience.errors.exceptions import ResilienceError
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.telemetry.edge.events import PREFIX

T = TypeVar("T")
R = TypeVar("R")

PAGE = 200
"""The largest page of runs that the API returns by default."""

AT_ONCE = 2
"""Requests at a time: while the server process writes an answer, its database works on the next request."""

UNCOMPRESSED = {"Accept-Encoding": "identity"}
"""The server would take longer to compress an answer than a network takes to carry it."""

Filter = dict[str, Any]


class ReportError(ResilienceError):
    """The report failed because the Prefect API was unavailable."""


@dataclass(frozen=True, slots=True)
class Period:
    """The time from `since` (inclusive) to `until` (exclusive); both with an offset."""

    since: datetime
    until: datetime

    @property
    def bounds(self) -> tuple[str, str]:
        """The first and the last microsecond, because the API includes both bounds."""
        return self.since.isoformat(), (self.until - timedelta(microseconds=1)).isoformat()

    def ends(self) -> Filter:
        """The filter for runs that ended in the period."""
        after, before = self.bounds
        return {"after_": after, "before_": before}

    def events(self, names: Iterable[str]) -> Filter:
        """The filter for events of these names: by full names, for which the server has an index."""
        since, until = self.bounds
        return {"occurred": {"since": since, "until": until}, "event": {"name": [*names]}}

    def parts(self, number: int) -> list[Period]:
        """Split the period into `number` equal parts."""
        step = (self.until - self.since) / number
        edges = [self.since + step * n for n in range(number)] + [self.until]
        return [Period(a, b) for a, b in pairwise(edges) if a < b]


class Api:
    """Requests to the Prefect API. Each raises ReportError if it fails."""

    def __init__(self, client: SyncPrefectClient) -> None:
        self._client = client
        self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="fleet-report")

    def post(self, path: str, body: Any) -> Any:
        return self._request("POST", path, json=body)

    def get(self, path: str, query: Any) -> Any:
        return self._request("GET", path, params=query)

    def _request(self, method: str, path: str, **options: Any) -> Any:
        try:
            # The type of the client lists only some of the server's routes.
            return cast("Any", self._client).request(method, path, headers=UNCOMPRESSED, **options).json()
        except (httpx.HTTPError, PrefectHTTPStatusError, ValueError) as error:
            advice = "check PREFECT_API_URL, and that its server runs"
            message = f"the Prefect API is unavailable at {path} ({redact(one_line(error))}): {advice}"
            raise ReportError(message) from error

    def each(self, work: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """Run `work` on every item, a few at a time. Yields the results in order."""
        return self._threads.map(work, items)

    def close(self) -> None:
        self._threads.shutdown(cancel_futures=True)

    # -- task runs and flow runs

    def count(self, kind: str, filters: Filter) -> int:
        """The number of `task_runs` or `flow_runs` that match."""
        return int(self.post(f"/{kind}/count", {kind: filters}))

    def page(self, filters: Filter, offset: int = 0, kind: str = "task_runs") -> list[dict[str, Any]]:
        """Up to PAGE `task_runs` or `flow_runs` that match, the latest end first."""
        body = {kind: filters, "limit": PAGE, "offset": offset, "sort": "END_TIME_DESC"}
        return self.post(f"/{kind}/filter", body)

    # -- events

    def count_by(self, what: str, filters: Filter) -> list[dict[str, Any]]:
        """Events counted by "event" or "resource": [{"value", "label", "count", ...}]."""
        # The API validates the unit of time here, too, and allows 1000 units.
        body: dict[str, Any] = {"filter": filters, "time_unit": "week", "time_interval": 1}
        return self.post(f"/events/count-by/{what}", body)

    def count_events(self, filters: Filter) -> int:
        """The number of events that match."""
        return sum(row["count"] for row in self.count_by("event", filters))

    def events(self, filters: Filter) -> list[dict[str, Any]]:
        """The events that match, the oldest first."""
        body = {"filter": {**filters, "order": "ASC"}, "limit": 50}
        page = self.post("/events/filter", body)
        events = page["events"]
        while page["next_page"]:
            # The link has the host that the server knows, which may not exist here: use its parameters only.
            page = self.get("/events/filter/next", httpx.URL(page["next_page"]).params)
            events += page["events"]
        return events

    def latest_event(self, filters: Filter) -> dict[str, Any] | None:
        """The newest event that matches."""
        page = self.post("/events/filter", {"filter": {**filters, "order": "DESC"}, "limit": 1})
        return next(iter(page["events"]), None)


@contextmanager
def opened() -> Generator[Api, None, None]:
    """The configured API, inside a flow run or outside."""
    try:
        client = get_client(sync_client=True)
    except Exception as error:  # such as a server that could not be started
        raise ReportError(f"no Prefect API is available: {redact(str(error))}") from error
    with client, closing(Api(client)) as api:
        yield api


def ours(*happenings: str) -> list[str]:
    """The full names of events of this package."""
    return [f"{PREFIX}.{happening}" for happening in happenings]
