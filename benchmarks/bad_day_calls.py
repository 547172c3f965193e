"""The callers of the bad day: a process that makes its share of the calls as a Prefect flow, four ways.

The function that asks a service is the same for all, and so are the client, its timeout and the delays of
those who retry; what stands around it differs. The calls are sent when the schedule says so, however
many of the earlier ones are still under way.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from multiprocessing.connection import Connection
from typing import Any

import httpx
import redis
from interlock import CircuitOpenError, Config, Registry, State, WindowType
from interlock.integrations.redis import RedisStorage
from interlock.integrations.tenacity import retry_unless_open
from prefect import flow, task
from prefect.cache_policies import NO_CACHE
from prefect.settings import PREFECT_FLOWS_HEARTBEAT_FREQUENCY, temporary_settings
from prefect.task_runners import ThreadPoolTaskRunner
from prefect.tasks import exponential_backoff
from tenacity import RetryCallState, Retrying, stop_after_attempt, wait_exponential_jitter

from benchmarks.bad_day_script import JITTER, RETRIES, RIVALS, SERVICES, Call, Form
from benchmarks.bad_day_services import SECOND
from prefect_resilience import Backoff, CircuitBreaker, Retry, resilient_task
from prefect_resilience.guards.circuits.listeners import transition_listeners

MOST_AT_ONCE = 200
POLLS_EACH = 0.1
"""Seconds between two looks of the peer at its Redis; its default is 1."""


@dataclass(frozen=True)
class Attempt:
    """One request as its sender saw it. Times are in seconds since the epoch."""

    number: int
    asked: str
    began: float
    ended: float
    ok: bool


@dataclass(frozen=True)
class Change:
    """A circuit's state from this moment on: "open", "half_open" or "closed"."""

    service: str
    state: str
    at: float


@dataclass
class Seen:
    """What one process saw of a day; `outcomes` are the final states of its task runs."""

    begun: dict[int, float] = field(default_factory=dict[int, float])
    attempts: list[Attempt] = field(default_factory=list[Attempt])
    outcomes: dict[int, bool] = field(default_factory=dict[int, bool])
    changes: list[Change] = field(default_factory=list[Change])


@dataclass
class Here:
    """Where this process is: the services' addresses, its client, and what it has seen."""

    form: Form
    ports: Mapping[str, int]
    redis_port: int
    client: httpx.Client
    seen: Seen = field(default_factory=Seen)


here: Here


def ask(service: str, number: int) -> str:
    """The work of every task: ask the service."""
    return _request(service, number)


def ask_second(service: str, number: int) -> str:
    """Ask the second provider instead, which answers for every service."""
    return _request(SECOND, number)


def _request(asked: str, number: int) -> str:
    began, ok = time.time(), False
    try:
        response = here.client.get(f"http://127.0.0.1:{here.ports[asked]}/{number}")
        response.raise_for_status()
        ok = True
        return response.text
    finally:
        here.seen.attempts.append(Attempt(number, asked, began, time.time(), ok))


# -- the four


def no_retries() -> Any:
    """Plain Prefect."""
    return task(ask, name="ask", cache_policy=NO_CACHE)


def prefect_retries() -> Any:
    """Plain Prefect with its own retries."""
    return task(
        ask,
        name="ask",
        cache_policy=NO_CACHE,
        retries=RETRIES,
        retry_delay_seconds=exponential_backoff(here.form.first_delay),
        retry_jitter_factor=JITTER,
    )


class Heard:
    """The peer's listener: when did a circuit change its state, as this process saw it?"""

    def on_state_change(self, *, name: str, old: State, new: State) -> None:
        here.seen.changes.append(Change(name, str(new), time.time()))


def pauses(first_delay: float) -> Callable[[RetryCallState], float]:
    """tenacity's exponential delays, and at least as long as the server asks for."""
    growing = wait_exponential_jitter(multiplier=first_delay, jitter=JITTER * first_delay)

    def pause(state: RetryCallState) -> float:
        error = state.outcome.exception() if state.outcome else None
        asked = (
            error.response.headers.get("Retry-After") if isinstance(error, httpx.HTTPStatusError) else None
        )
        return max(growing(state), float(asked or 0))

    return pause


def interlock_with_tenacity() -> Any:
    """The peer as its documentation composes it: tenacity outside, the breaker inside, Redis shared."""
    form = here.form
    config = Config(
        failure_rate_threshold=0.5,
        minimum_number_of_calls=5,
        window_type=WindowType.TIME_BASED,
        window_size=form.peer_window,
        wait_duration_in_open=form.open_for,
        permitted_calls_in_half_open=2,
    )
    storage = RedisStorage(redis.Redis(port=here.redis_port), poll_interval=POLLS_EACH)
    breakers = Registry(config=config, storage=storage, listener=Heard())
    retrying = Retrying(
        retry=retry_unless_open(httpx.HTTPError),
        wait=pauses(form.first_delay),
        stop=stop_after_attempt(RETRIES + 1),
        reraise=True,
    )

    def ask_guarded(service: str, number: int) -> str:
        try:
            return retrying(breakers.get(service).call, ask, service, number)
        except (CircuitOpenError, httpx.HTTPError):
            return ask_second(service, number)

    return task(ask_guarded, name="ask", cache_policy=NO_CACHE)


def prefect_resilience() -> Any:
    """Ours: its circuits are in the store that nobody configured."""
    form = here.form
    backoff = Backoff.exponential(form.first_delay, jitter=JITTER)
    once_more = Retry(attempts=2, backoff=backoff)
    # Whoever has somebody else to ask does not queue for long, nor sit through one timeout after another.
    by_category = {"rate_limit": once_more, "timeout": once_more}
    return resilient_task(
        name="ask",
        cache_policy=NO_CACHE,
        retry=Retry(attempts=RETRIES + 1, backoff=backoff, by_category=by_category),
        # A fleet of so few calls a second can afford to ask the store before each of them.
        circuit=CircuitBreaker("{service}", open_for=form.open_for, sync_interval=0.001),
        fallback=ask_second,
    )(ask)


MAKERS: Mapping[str, Callable[[], Any]] = dict(
    zip(RIVALS, (no_retries, prefect_retries, interlock_with_tenacity, prefect_resilience), strict=True)
)


@cache
def task_of(rival: str) -> Any:
    return MAKERS[rival]()


# -- the flow


@flow(name="bad-day", task_runner=ThreadPoolTaskRunner(max_workers=MOST_AT_ONCE), validate_parameters=False)
def live_through(rival: str, calls: list[Call], wait_for_begin: Callable[[], float]) -> dict[int, bool]:
    """Send each call at its time, and say which of them brought an answer."""
    asking = task_of(rival)
    futures: dict[int, Any] = {}
    begins = wait_for_begin()
    for call in calls:
        time.sleep(max(0.0, begins + call.at - time.time()))
        here.seen.begun[call.number] = time.time()
        futures[call.number] = asking.submit(call.service, call.number)
    for future in futures.values():
        future.wait()
    return {number: future.state.is_completed() for number, future in futures.items()}


def warm_up(rival: str) -> None:
    """A flow run of one call to each service: nobody's first calls pay for imports and connections."""
    calls = [Call(number, service, 0.0, 0) for number, service in enumerate(SERVICES)]
    live_through(rival, calls, time.time)
    here.seen = Seen()


def run(connection: Connection, form: Form, ports: Mapping[str, int], redis_port: int, log: str) -> None:
    """Live through a day for each (rival, calls) that comes, from the time that is sent then; until None."""
    global here
    # What plain tasks say of every failure is for nobody here.
    said = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
    os.dup2(said, 1)
    os.dup2(said, 2)
    limits = httpx.Limits(max_connections=MOST_AT_ONCE, max_keepalive_connections=20)
    here = Here(form, ports, redis_port, httpx.Client(timeout=form.timeout, limits=limits))
    transition_listeners.add(
        lambda change: here.seen.changes.append(Change(change.name, change.after, time.time()))
    )

    def wait_for_begin() -> float:
        connection.send("ready")
        return connection.recv()

    # A flow run waits for the thread of its heartbeat at its end.
    with temporary_settings({PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}):
        while (command := connection.recv()) is not None:
            rival, calls = command
            warm_up(rival)
            here.seen.outcomes = live_through(rival, calls, wait_for_begin)
            connection.send(here.seen)
