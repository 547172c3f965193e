"""One scenario, run as a sync and as an async task, and what the Prefect API then knows of it.

A plugin, like `tests.prefect_api`, which gives the API to the tests that are marked `api`.
"""

from __future__ import annotations

import asyncio
import functools
import inspect
import logging
import time
from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Any
from uuid import UUID, uuid4

import httpx
import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State

from prefect_resilience import resilient_task
from prefect_resilience.guards.circuits.registry import forget_circuits


@pytest.fixture(autouse=True)
def own_store(monkeypatch: pytest.MonkeyPatch) -> None:
    """Circuits of one test know nothing of another's."""
    forget_circuits()
    monkeypatch.setenv("PREFECT_RESILIENCE_STORE_URL", f"memory://{uuid4().hex}")


class Mode:
    """How a scenario is run: its body is a plain function, which async tasks await."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.isasync = name == "async"

    def function(self, body: Callable[..., Any]) -> Callable[..., Any]:
        """The body as a function of this mode, with its own name and parameters."""
        if not self.isasync:
            return body

        @functools.wraps(body)
        async def coroutine(*args: Any, **kwargs: Any) -> Any:
            await asyncio.sleep(0)
            return body(*args, **kwargs)

        coroutine.__qualname__ = body.__name__
        coroutine.__signature__ = inspect.signature(body)  # type: ignore[attr-defined]
        return coroutine

    def task(self, body: Callable[..., Any], **options: Any) -> Any:
        return resilient_task(**options)(self.function(body))

    def state(self, task: Any, *args: Any, **kwargs: Any) -> State:
        """The final state of one run of the task inside a flow."""
        return self.flow(task, *args, return_state=True, **kwargs)

    def value(self, task: Any, *args: Any, **kwargs: Any) -> Any:
        """What one call of the task inside a flow gives; its error is raised."""
        return self.flow(task, *args, **kwargs)

    def flow(self, task: Any, *args: Any, **kwargs: Any) -> Any:
        held: list[Any] = []
        if self.isasync:

            @flow
            async def scenario() -> None:
                try:
                    held.append(await task(*args, **kwargs))
                except Exception as error:
                    held.append(error)

            asyncio.run(scenario())
        else:

            @flow
            def scenario() -> None:
                try:
                    held.append(task(*args, **kwargs))
                except Exception as error:
                    held.append(error)

            scenario()
        if isinstance(held[0], Exception):
            raise held[0]
        return held[0]

    def stream(self, body: Callable[[], Any], **options: Any) -> Any:
        """A generator task of this mode, whose chunks are those of a plain generator function."""
        if not self.isasync:
            return resilient_task(**options)(body)

        async def stream() -> Any:
            for chunk in body():
                await asyncio.sleep(0)
                yield chunk

        return resilient_task(**options)(stream)

    def read(
        self, stream: Any, most: int | None = None, pause: float = 0.0
    ) -> tuple[list[Any], Exception | None]:
        """The chunks of a generator task in a flow, and the error that ended them, if any. The reader rests
        after each chunk, and stops after `most` of them."""
        chunks: list[Any] = []

        def read() -> None:
            for chunk in stream():
                chunks.append(chunk)
                time.sleep(pause)
                if len(chunks) == most:
                    break

        async def aread() -> None:
            async for chunk in stream():
                chunks.append(chunk)
                await asyncio.sleep(pause)
                if len(chunks) == most:
                    break

        try:
            asyncio.run(flow(aread)()) if self.isasync else flow(read)()
        except Exception as error:
            return chunks, error
        return chunks, None


@pytest.fixture(params=["sync", "async"])
def mode(request: pytest.FixtureRequest) -> Mode:
    return Mode(request.param)


@pytest.fixture
def get(service: Any) -> Callable[..., Any]:
    """Call the service through httpx, as a user's task does."""
    client = httpx.Client()

    def get(path: str = "/", **options: Any) -> str:
        response = client.get(service.url + path, **options)
        response.raise_for_status()
        return response.text

    return get


class _Listener(logging.Handler):
    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.records: list[logging.LogRecord] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.records.append(record)


@pytest.fixture
def run_log() -> Iterator[list[logging.LogRecord]]:
    """The records that Prefect's handlers get for task runs and flow runs of this process."""
    listener = _Listener()
    loggers = [logging.getLogger(f"prefect.{kind}_runs") for kind in ("task", "flow")]
    for logger in loggers:
        logger.addHandler(listener)
    yield listener.records
    for logger in loggers:
        logger.removeHandler(listener)


class Seen:
    """What the Prefect API knows, asked until it has arrived there."""

    def task_run(self, task_run_id: UUID) -> Any:
        with get_client(sync_client=True) as client:
            return until(lambda: _final(client, task_run_id))

    def states(self, task_run_id: UUID) -> list[State]:
        """Its states in their order. The API may know the last one before one in between."""
        self.task_run(task_run_id)
        with get_client(sync_client=True) as client:

            def found() -> list[State]:
                answer = client.request("GET", "/task_run_states/", params={"task_run_id": str(task_run_id)})
                states = [State.model_validate(state) for state in answer.json()]
                return sorted(states, key=lambda state: state.timestamp)

            return until(lambda: _without_gap(found()))

    def logged(self, flow_run_id: UUID, text: str) -> bool:
        """Whether the log of a flow run and its task runs has this line; waited for."""
        body = {"logs": {"flow_run_id": {"any_": [str(flow_run_id)]}}}
        with get_client(sync_client=True) as client:
            return until(
                lambda: any(
                    line["message"] == text
                    for line in client.request("POST", "/logs/filter", json=body).json()
                )
            )

    def events(
        self, name: str, matches: Callable[[dict[str, Any]], bool] = lambda event: True
    ) -> list[dict[str, Any]]:
        """Events of that name, waited for."""

        return until(lambda: [event for event in self.all_events(name) if matches(event)])

    def all_events(self, name: str) -> list[dict[str, Any]]:
        """Every event of that name which the API has by now, page by page."""
        with get_client(sync_client=True) as client:
            body = {"filter": {"event": {"name": [name]}}, "limit": 50}
            page = client.request("POST", "/events/filter", json=body).json()
            found = page["events"]
            while page["next_page"]:
                page = client._client.get(page["next_page"]).json()
                found += page["events"]
        return found


def _without_gap(states: list[State]) -> list[State] | None:
    """The states, if one at which the run goes on follows each wait for a retry."""
    pairs = pairwise(states)
    whole = all(after.is_running() or after.is_scheduled() for one, after in pairs if one.is_scheduled())
    return states if whole else None


def _final(client: Any, task_run_id: UUID) -> Any:
    try:
        task_run = client.read_task_run(task_run_id)
    except Exception:
        return None
    return task_run if task_run.state and task_run.state.is_final() else None


@pytest.fixture(name="until")
def until_fixture() -> Callable[..., Any]:
    return until


def until(ask: Callable[[], Any], seconds: float = 30.0) -> Any:
    """Ask again until there is an answer."""
    deadline = time.monotonic() + seconds
    while not (answer := ask()):
        if time.monotonic() > deadline:
            raise AssertionError("it did not come about")
        time.sleep(0.05)
    return answer


@pytest.fixture
def seen() -> Seen:
    return Seen()
