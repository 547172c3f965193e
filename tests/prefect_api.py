"""A real Prefect API for the tests that are marked `api`, and none for the others.

A plugin: all files, and all workers of pytest-xdist, share one server, which takes its time to start.
"""

import functools
import inspect
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from prefect.context import SettingsContext, _temporary_global_settings_context, get_settings_context
from prefect.events.worker import EventsWorker
from prefect.logging.handlers import APILogWorker
from prefect.server.api.server import SubprocessASGIServer
from prefect.settings import PREFECT_API_URL, PREFECT_FLOWS_HEARTBEAT_FREQUENCY, Settings, temporary_settings
from prefect.utilities.asyncutils import run_coro_as_sync

from tests.prefect_server import end_server, shared_server, start_server

# Where the session's server is noted, and the process at whose end it ends
SERVER = pytest.StashKey[tuple[str, int]]()


def pytest_configure(config: pytest.Config) -> None:
    worker = getattr(config, "workerinput", None)
    made = worker["prefect_server"] if worker else (tempfile.mkdtemp(prefix="prefect-api-"), os.getpid())
    config.stash[SERVER] = made


@pytest.hookimpl(optionalhook=True)
def pytest_configure_node(node: Any) -> None:
    node.workerinput["prefect_server"] = node.config.stash[SERVER]


def pytest_unconfigure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):
        folder, _ = config.stash[SERVER]
        end_server(Path(folder))
        shutil.rmtree(folder, ignore_errors=True)


def pytest_itemcollected(item: pytest.Item) -> None:
    """A marked test gets the API; a test that gets it through a fixture gets the mark, to be selected by."""
    if not isinstance(item, pytest.Function):
        return
    if {"prefect_api", "own_prefect_api"} & set(item.fixturenames):
        item.add_marker(pytest.mark.api)
    elif item.get_closest_marker("api"):
        item.fixturenames = ["prefect_api", *item.fixturenames]


@pytest.fixture(scope="session")
def prefect_api(pytestconfig: pytest.Config) -> Iterator[None]:
    """The API of the session."""
    folder, session = pytestconfig.stash[SERVER]
    url = shared_server(Path(folder), session)
    refused.instead_of.add(url)
    with _settings_of(url):
        yield


@pytest.fixture(scope="module")
def own_prefect_api(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A new API for one file, all tests of which ask for it: they count or change what a server has. The
    folder that has its database."""
    folder = tmp_path_factory.mktemp("prefect")
    url = start_server(folder, os.getpid())
    with _settings_of(url):
        yield folder
    end_server(folder)


@contextmanager
def _settings_of(url: str) -> Iterator[None]:
    """Settings in which this is the API, also where the context was copied before."""
    settings = temporary_settings(
        {
            PREFECT_API_URL: url,
            # A flow run waits for its heartbeat's thread at the end: a second in each of hundreds of runs.
            PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None,
        }
    )
    drain()
    with settings, _temporary_global_settings_context(get_settings_context()):
        yield
        drain()


def drain() -> None:
    """Send the logs and events that are waiting, and forget to which API: the next may be another."""

    async def drain() -> None:
        for worker in (APILogWorker, EventsWorker):
            waiting: Any = worker.drain_all()
            if inspect.isawaitable(waiting):
                await waiting

    run_coro_as_sync(drain())


class _Refused:
    """Instead of the server that Prefect starts when it was given none; counts how often it was asked for."""

    def __init__(self) -> None:
        self.asked = 0
        # The APIs that a test without the mark would find: whatever is configured here, and the session's
        self.instead_of = {PREFECT_API_URL.value()} - {None}

    def install(self) -> None:
        start = SubprocessASGIServer.start
        refused = self

        def start_what_was_asked_for(self: SubprocessASGIServer, timeout: int | None = None) -> None:
            if self._instance_key is not None:
                return start(self, timeout)
            refused.asked += 1
            raise RuntimeError("There is no Prefect API for a test without the mark: pytest.mark.api")

        SubprocessASGIServer.start = start_what_was_asked_for


refused = _Refused()
refused.install()


@pytest.fixture(autouse=True)
def no_api_without_the_mark(request: pytest.FixtureRequest) -> Iterator[None]:
    """A test without the mark that asks for an API fails, even where the tested code handles the error."""
    if request.node.get_closest_marker("api"):
        yield
        return
    refused.asked = 0
    with _no_api():
        yield
    assert not refused.asked, "this test asked for a Prefect API: mark it with pytest.mark.api"


@contextmanager
def _no_api() -> Iterator[None]:
    """Settings without an API, where a marked test of this process has left one."""
    context = get_settings_context()
    if context.settings.api.url not in refused.instead_of:
        yield
        return
    without = SettingsContext(profile=context.profile, settings=_settings_without_api())
    with without, _temporary_global_settings_context(without):
        yield


@functools.cache
def _settings_without_api() -> Settings:
    """Made once: a copy of Prefect's settings takes 20 ms."""
    with temporary_settings(restore_defaults={PREFECT_API_URL}) as settings:
        return settings
