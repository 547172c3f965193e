"""10,000 pages in one Prefect task, from a service on its bad day: `python -m benchmarks.pages [--json]`.

The day of `benchmarks.pages_service`: 503s, 429s with Retry-After, cut connections, slow answers, down for a
while, back. 50 pages are fetched at once, with tenacity, with stamina, with `@resilient`, and with the httpx
transport. All have the same limits: 10 attempts and 90 s for a page, exponential delays with jitter, and they
wait as long as a Retry-After says. The service counts its requests. Those while it was down are requests to a
dead service. At the end the attempts in the flow run's totals are compared with the service's own count.

The exit code is 1 if ours lost a page, made more requests to the dead service than a peer, or miscounted.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Sequence
from contextlib import AsyncExitStack, contextmanager
from dataclasses import asdict, dataclass

if __name__ == "__main__":
    os.environ.setdefault("PREFECT_LOGGING_LEVEL", "CRITICAL")
    os.environ.setdefault("PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS", "120")

import httpx
import stamina
import tenacity
from prefect import task
from prefect.context import FlowRunContext
from rich.console import Console
from rich.table import Table

from benchmarks.pages_service import DOWN, Form, add_options, body_of, counts_of, pages_service
from prefect_resilience import Backoff, CircuitBreaker, Retry, resilient_flow
from prefect_resilience.calls.edge.resilient import resilient
from prefect_resilience.http import AsyncResilientTransport
from prefect_resilience.telemetry import notes
from prefect_resilience.telemetry.edge.call_totals import send_totals

ATTEMPTS, LIMIT = 10, 90.0
INITIAL, MAXIMUM = 0.2, 5.0
TENACITY, STAMINA, DECORATOR, TRANSPORT = "tenacity", "stamina", "@resilient", "ResilientTransport"
OURS = (DECORATOR, TRANSPORT)
CLIENTS = 5
"""httpx searches its pool for each request: one pool with 50 connections costs four times as much."""

Fetch = Callable[[int], Awaitable[bytes]]


def retry_policy() -> Retry:
    # A call that the open circuit rejects is tried again until the circuit lets it through. This asks nothing
    # of the service, so that it is not among the 10 attempts.
    backoff = Backoff.exponential(initial=INITIAL, maximum=1)
    rejected = Retry(attempts=500, backoff=backoff, respect_retry_after=False)
    return Retry(
        attempts=ATTEMPTS,
        backoff=Backoff.exponential(initial=INITIAL, maximum=MAXIMUM),
        by_category={"circuit_open": rejected},
        max_elapsed=LIMIT,
    )


def circuit(name: str) -> CircuitBreaker:
    return CircuitBreaker(name, failure_threshold=10, open_for=1, open_max=3)


# The four ways


async def got(client: httpx.AsyncClient, page: int) -> bytes:
    return (await client.get(f"/page/{page}")).raise_for_status().content


def is_transient(error: BaseException) -> bool:
    if isinstance(error, httpx.HTTPStatusError):
        return error.response.status_code == 429 or error.response.status_code >= 500
    return isinstance(error, httpx.TransportError)


def asked_to_wait(error: BaseException | None) -> float:
    """The seconds of a Retry-After."""
    said = error.response.headers.get("Retry-After", "") if isinstance(error, httpx.HTTPStatusError) else ""
    return float(said) if said.isdigit() else 0.0


def with_tenacity(client: httpx.AsyncClient) -> Fetch:
    exponential = tenacity.wait_exponential_jitter(multiplier=INITIAL, max=MAXIMUM)

    def wait(state: tenacity.RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome else None
        return max(exponential(state), asked_to_wait(error))

    @tenacity.retry(
        retry=tenacity.retry_if_exception(is_transient),
        stop=tenacity.stop_after_attempt(ATTEMPTS) | tenacity.stop_after_delay(LIMIT),
        wait=wait,
        reraise=True,
    )
    async def page(number: int) -> bytes:
        return await got(client, number)

    return page


def with_stamina(client: httpx.AsyncClient) -> Fetch:
    def on(error: Exception) -> bool | float:
        return asked_to_wait(error) or is_transient(error)

    @stamina.retry(
        on=on, attempts=ATTEMPTS, timeout=LIMIT, wait_initial=INITIAL, wait_max=MAXIMUM, wait_jitter=1.0
    )
    async def page(number: int) -> bytes:
        return await got(client, number)

    return page


def with_decorator(client: httpx.AsyncClient) -> Fetch:
    @resilient(retry=retry_policy(), circuit=circuit(f"pages:{client.base_url.port}"), name="page")
    async def page(number: int) -> bytes:
        return await got(client, number)

    return page


def with_transport(client: httpx.AsyncClient) -> Fetch:
    # The transport guards a request until the headers of its answer have come. A body that is cut is a matter
    # of the code that reads it.
    @resilient(
        retry=Retry(ATTEMPTS, backoff=Backoff.exponential(initial=INITIAL, maximum=MAXIMUM)), name="body"
    )
    async def page(number: int) -> bytes:
        return await got(client, number)

    return page


WAYS: dict[str, Callable[[httpx.AsyncClient], Fetch]] = {
    TENACITY: with_tenacity,
    STAMINA: with_stamina,
    DECORATOR: with_decorator,
    TRANSPORT: with_transport,
}


# A day


@dataclass
class Day:
    """One day of one way. `attempts` and `rejected` are the totals of the flow run; None for the peers."""

    way: str
    pages: int
    delivered: int
    requests: int
    dead: int
    seconds: float
    attempts: int | None = None
    rejected: int | None = None
    waited: float | None = None


def client_of(way: str, url: str, timeout: float) -> httpx.AsyncClient:
    transport = None
    if way == TRANSPORT:
        transport = AsyncResilientTransport(retry=retry_policy(), circuit=circuit("http:{host}"))
    return httpx.AsyncClient(base_url=url, timeout=timeout, transport=transport)


@task
async def fetch_all(way: str, form: Form, url: str) -> tuple[int, float]:
    """Fetch all pages; the number of those that came, and the seconds."""
    began, left, came = time.monotonic(), iter(range(form.pages)), 0

    async def work(fetch: Fetch) -> None:
        nonlocal came
        for page in left:
            try:
                content = await fetch(page)
                came += content == body_of(page)
            except Exception as error:  # noqa: BLE001 - the page is lost, the others go on
                print(f"{way}: page {page} was lost: {error!r}", file=sys.stderr)

    async with AsyncExitStack() as stack:
        fetches: list[Fetch] = []
        for _ in range(CLIENTS):
            client = client_of(way, url, form.timeout)
            fetches.append(WAYS[way](await stack.enter_async_context(client)))
        await asyncio.gather(*(work(fetches[number % CLIENTS]) for number in range(form.at_once)))
    return came, time.monotonic() - began


@resilient_flow(validate_parameters=False)
async def day_of(way: str, form: Form, url: str) -> tuple[int, float, Counter[tuple[str, str]]]:
    """The number of pages that came, the seconds, and the totals that were sent for this flow run."""
    context = FlowRunContext.get()
    assert context is not None
    assert context.flow_run is not None
    came, took = await fetch_all(way, form, url)
    send_totals()  # as the end of the flow run does, after which they are forgotten
    noted = notes.last_notes(str(context.flow_run.id))
    return came, took, noted.calls if noted else Counter()


def live(way: str, form: Form) -> Day:
    with pages_service(form) as url:
        came, took, totals = asyncio.run(day_of(way, form, url))
        counted = counts_of(url)["requests"]
    day = Day(way, form.pages, came, sum(counted.values()), counted.get(DOWN, 0), round(took, 1))
    if way in OURS:
        function = "page" if way == DECORATOR else "GET " + url.removeprefix("http://")
        day.attempts, day.rejected = int(totals[function, "attempts"]), int(totals[function, "rejected"])
        day.waited = round(totals[function, "waited"], 1)
    return day


# The promises, and the output


def promises(days: Sequence[Day]) -> dict[str, bool]:
    """Whether ours keeps what it promises, by the promise."""
    ours = [day for day in days if day.way in OURS]
    peers = [day for day in days if day.way not in OURS]
    kept: dict[str, bool] = {}
    for day in ours:
        kept[f"{day.way}: all pages came"] = day.delivered == day.pages
        kept[f"{day.way}: the totals have the service's own count of requests"] = day.attempts == day.requests
        for peer in peers:
            kept[f"{day.way}: fewer requests to the dead service than {peer.way}"] = day.dead < peer.dead
    return kept


def table_of(days: Sequence[Day]) -> Table:
    headings = (
        "",
        "pages",
        "requests",
        "to the dead service",
        "attempts in the totals",
        "rejected",
        "seconds",
    )
    table = Table(title="10,000 pages on a bad day" if days[0].pages == 10_000 else "pages on a bad day")
    for heading in headings:
        table.add_column(heading, justify="right" if heading else "left")
    for day in days:
        totals = [f"{value:,}" if value is not None else "" for value in (day.attempts, day.rejected)]
        counts = (f"{day.delivered:,}", f"{day.requests:,}", f"{day.dead:,}")
        table.add_row(day.way, *counts, *totals, f"{day.seconds:.0f}")
    return table


@contextmanager
def quiet() -> Generator[None]:
    """No log lines of the ways about their retries."""
    before = logging.root.manager.disable
    stamina.instrumentation.set_on_retry_hooks([])
    logging.disable(logging.ERROR)
    try:
        yield
    finally:
        logging.disable(before)
        stamina.instrumentation.set_on_retry_hooks(None)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    add_options(parser)
    parser.add_argument("--only", choices=[*WAYS], action="append", help="only this way; may be repeated")
    parser.add_argument("--json", action="store_true", help="print JSON instead of a table")
    options = parser.parse_args(arguments)
    form = Form(options.pages, options.seconds, options.at_once)
    with quiet():
        days = [live(way, form) for way in options.only or WAYS]
    kept = promises(days)
    if options.json:
        print(json.dumps({"days": [asdict(day) for day in days], "kept": kept}, indent=2))
    else:
        console = Console(width=None if sys.stdout.isatty() else 110)
        console.print(table_of(days))
        for promise, well in kept.items():
            console.print(f"{'kept' if well else 'BROKEN'}: {promise}", highlight=False)
    return 0 if all(kept.values()) else 1


if __name__ == "__main__":
    raise SystemExit(main())
