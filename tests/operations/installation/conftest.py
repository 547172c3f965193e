"""A real server of the tests' own with its automations at work, a worker, and a webhook that remembers."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
from prefect.settings import PREFECT_API_URL, PREFECT_HOME, temporary_settings

from prefect_resilience.testing import ScriptedService
from tests.free_ports import free_port
from tests.prefect_runs import until


class Programs:
    """Programs of Prefect's, which are ended with the tests."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.running: list[subprocess.Popen[bytes]] = []

    def start(self, *words: str, **environment: str) -> subprocess.Popen[bytes]:
        """`prefect <words>`, with this environment and no other settings of Prefect's."""
        log = (self.folder / f"{len(self.running)}-{words[0]}.log").open("wb")
        env = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
        # A session of its own, so that its children end with it.
        process = subprocess.Popen(
            [sys.executable, "-m", "prefect", *words],
            env={**env, **environment},
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        self.running.append(process)
        return process

    def end(self) -> None:
        for process in reversed(self.running):
            try:
                os.killpg(process.pid, signal.SIGKILL)
            except ProcessLookupError:
                continue
            process.wait()


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Programs]:
    started = Programs(tmp_path_factory.mktemp("programs"))
    yield started
    started.end()


@pytest.fixture(scope="module")
def server(programs: Programs) -> Iterator[dict[str, str]]:
    """A new server; the environment in which its API is the one that is meant."""
    port = free_port()
    home = programs.folder / "home"
    environment = {
        "PREFECT_HOME": str(home),
        "PREFECT_API_URL": f"http://127.0.0.1:{port}/api",
        "PREFECT_RESILIENCE_STORE_URL": f"sqlite:///{programs.folder}/fleet.db",
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_LOGGING_LEVEL": "WARNING",
    }
    programs.start("server", "start", "--port", str(port), "--no-ui", **environment)
    until(lambda: answers(f"{environment['PREFECT_API_URL']}/health"), 250)
    with temporary_settings({PREFECT_API_URL: environment["PREFECT_API_URL"], PREFECT_HOME: home}):
        yield environment


def answers(url: str) -> bool:
    try:
        return httpx.get(url).status_code == 200
    except httpx.TransportError:
        return False


class Webhook(ScriptedService):
    """Answers 200 to whatever is posted to it."""

    def about(self, text: str) -> list[dict[str, Any]]:
        """The posts with this text in their subject."""
        posts = [json.loads(request.body) for request in self.requests]
        return [post for post in posts if text in post["subject"]]


@pytest.fixture(scope="module")
def webhook() -> Iterator[Webhook]:
    with Webhook(200) as made:
        yield made
