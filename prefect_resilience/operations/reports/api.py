"""What the report asks the Prefect API, a few requests at a time."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime, timedelta
from itertools import pairwise
from typing import Any, TypeVar, cast

import httpx
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.exceptions import PrefectHTTPStatusError

from prefect_resilience.errors.exceptions import ResilienceError
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.telemetry.edge.events import PREFIX

T = TypeVar("T")
R = TypeVar("R")

PAGE = 200
"""Runs that the API hands out at once, by default."""

AT_ONCE = 2
"""Requests at a time: while the server, one process, writes an answer, its database works on the next."""

Filter = dict[str, Any]


class ReportError(ResilienceError):
    """The report could not be made, because the Prefect API did not answer as it should."""


@dataclass(frozen=True, slots=True)
class Period:
    """`since` to `until`, which is not in it any more; both with an offset."""

    since: datetime
    until: datetime

    @property
    def bounds(self) -> tuple[str, str]:
        """The first and the last moment, since the API includes both."""
        return self.since.isoformat(), (self.until - timedelta(microseconds=1)).isoformat()

    def ended(self) -> Filter:
        """The filter for runs that ended in it."""
        after, before = self.bounds
        return {"after_": after, "before_": before}

    def occurred(self) -> Filter:
        """The filter for events of it."""
        since, until = self.bounds
        return {"since": since, "until": until}

    def parts(self, number: int) -> list[Period]:
        """It in so many pieces of the same length."""
        step = (self.until - self.since) / number
        edges = [self.since + step * n for n in range(number)] + [self.until]
        return [Period(a, b) for a, b in pairwise(edges) if a < b]


class Api:
    """Requests to the Prefect API. Each raises ReportError when it is not answered."""

    def __init__(self, client: SyncPrefectClient) -> None:
        self._client = client
        self._threads = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="fleet-report")
        # Work that waits for requests may not take their threads.
        self._workers = ThreadPoolExecutor(AT_ONCE, thread_name_prefix="fleet-report-beside")

    def post(self, path: str, body: Any) -> Any:
        return self._asked("POST", path, json=body)

    def get(self, path: str, query: Any) -> Any:
        return self._asked("GET", path, params=query)

    def _asked(self, method: str, path: str, **options: Any) -> Any:
        try:
            # The client's own type lists its routes, and not all that the server has.
            return cast("Any", self._client).request(method, path, **options).json()
        except (httpx.HTTPError, PrefectHTTPStatusError, ValueError) as error:
            said = redact(" ".join(str(error).split())) or type(error).__name__
            raise ReportError(
                f"the Prefect API did not answer {path} ({said}): "
                "check PREFECT_API_URL, and that its server runs"
            ) from error

    def each(self, work: Callable[[T], R], items: Iterable[T]) -> Iterator[R]:
        """`work` on every item, a few at a time, in their order; never more of them waiting than that."""
        waiting: list[Any] = []
        for item in items:
            waiting.append(self._threads.submit(work, item))
            if len(waiting) >= 2 * AT_ONCE:
                yield waiting.pop(0).result()
        while waiting:
            yield waiting.pop(0).result()

    def beside(self, work: Callable[[], R]) -> Future[R]:
        """`work`, which may make requests, while others are made: the server counts while it writes."""
        return self._workers.submit(work)

    def close(self) -> None:
        self._workers.shutdown(cancel_futures=True)
        self._threads.shutdown(cancel_futures=True)

    # -- task runs and flow runs

    def count(self, kind: str, filters: Filter) -> int:
        """How many `task_runs` or `flow_runs` fit."""
        return int(self.post(f"/{kind}/count", {kind: filters}))

    def page(self, filters: Filter, offset: int = 0, sort: str = "END_TIME_DESC") -> list[dict[str, Any]]:
        body = {"task_runs": filters, "limit": PAGE, "offset": offset, "sort": sort}
        return self.post("/task_runs/filter", body)

    def flow_runs(self, filters: Filter, most: int) -> list[dict[str, Any]]:
        """Up to `most` flow runs that fit, those that ended last first."""
        found: list[dict[str, Any]] = []
        while len(found) < most:
            body = {"flow_runs": filters, "limit": PAGE, "offset": len(found), "sort": "END_TIME_DESC"}
            page = self.post("/flow_runs/filter", body)
            found += page
            if len(page) < PAGE:
                break
        return found[:most]

    # -- events

    def count_by(self, what: str, filters: Filter) -> list[dict[str, Any]]:
        """Events counted by "event" or "resource": [{"value", "label", "count", ...}]."""
        # The unit is for counts by time, but the API checks it all the same, and allows 1000 of them.
        body: dict[str, Any] = {"filter": filters, "time_unit": "week", "time_interval": 1}
        return self.post(f"/events/count-by/{what}", body)

    def count_events(self, filters: Filter) -> int:
        """How many events fit."""
        return sum(row["count"] for row in self.count_by("event", filters))

    def count_resources(self, filters: Filter) -> int:
        """How many resources there are of events that fit."""
        distinct = {**filters, "resource": {**filters.get("resource", {}), "distinct": True}}
        return int(self.post("/events/filter", {"filter": distinct, "limit": 1})["total"])

    def events(self, filters: Filter, most: int) -> tuple[list[dict[str, Any]], int]:
        """Up to `most` events, the oldest first, and how many there are."""
        body = {"filter": {**filters, "order": "ASC"}, "limit": 50}
        page = self.post("/events/filter", body)
        found, total = page["events"], page["total"]
        while page["next_page"] and len(found) < most:
            # The server writes the link as it was reached, which may be a name that is not known here.
            page = self.get("/events/filter/next", httpx.URL(page["next_page"]).params)
            found += page["events"]
        return found, total

    def latest_event(self, filters: Filter) -> dict[str, Any] | None:
        """The newest event that fits."""
        page = self.post("/events/filter", {"filter": {**filters, "order": "DESC"}, "limit": 1})
        return next(iter(page["events"]), None)


@contextmanager
def opened() -> Generator[Api, None, None]:
    """The API that is configured, in a run or not."""
    try:
        made = get_client(sync_client=True)
    except Exception as error:  # a server that was to be started for it, among others
        raise ReportError(f"there is no Prefect API to ask: {redact(str(error))}") from error
    with made as client:
        api = Api(client)
        try:
            yield api
        finally:
            api.close()


def ours(*happenings: str) -> list[str]:
    """The names of events of ours."""
    return [f"{PREFIX}.{happening}" for happening in happenings]
