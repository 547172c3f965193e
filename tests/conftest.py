"""Real parts that many tests need."""

import atexit
import gc
import os
import shutil
import signal
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import certifi
import hypothesis
import pytest

pytest_plugins = ["tests.prefect_api", "tests.prefect_runs", "tests.stores_servers"]


def trust_one_authority() -> None:
    """Every HTTP client reads the certificates of all authorities, which takes a processor 20 ms and more.

    No test leaves the loopback: one certificate is as good as all, here and in the processes started here.
    Prefect reads the variable when it is imported. Who does leave finds what it was in AUTHORITIES.
    """
    if "AUTHORITIES" in os.environ:  # a worker of pytest-xdist
        return
    end = "-----END CERTIFICATE-----\n"
    first = Path(certifi.where()).read_text(encoding="utf-8").partition(end)[0] + end
    folder = tempfile.mkdtemp(prefix="authority-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    file = Path(folder) / "one.pem"
    file.write_text(first, encoding="utf-8")
    os.environ["AUTHORITIES"] = os.environ.get("SSL_CERT_FILE", "")
    os.environ["SSL_CERT_FILE"] = str(file)


trust_one_authority()

from prefect_resilience.testing.services import ReceivedRequest, Reply, ScriptedService  # noqa: E402

# A shell's background job ignores Ctrl-C and hands that down to its children, which tests interrupt.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)

# How many examples Hypothesis tries where a test does not say it itself: `make test` sets `ci`
hypothesis.settings.register_profile("ci", max_examples=30)
hypothesis.settings.register_profile("all", max_examples=60)
hypothesis.settings.register_profile("nightly", max_examples=300)
hypothesis.settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "all"))


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with slow tests come first, then those with an API: other workers wait for short ones at the end.

    Files that coverage does not measure come last: it would miss what they import or cache for other tests.
    """
    slow, api, unmeasured = (
        {item.path for item in items if item.get_closest_marker(mark)} for mark in ("slow", "api", "no_cover")
    )
    items.sort(key=lambda item: (item.path in unmeasured, item.path not in slow, item.path not in api))


class Service(ScriptedService):
    """A service that also lists the times and the paths of its calls."""

    def __init__(self) -> None:
        self.calls: list[float] = []
        self.paths: list[str] = []
        super().__init__()

    def answer(self, request: ReceivedRequest) -> Reply:
        self.calls.append(request.at)
        self.paths.append(request.path)
        return super().answer(request)


@pytest.fixture
def service() -> Iterator[Service]:
    with Service() as service:
        yield service


@pytest.fixture
def warm_children() -> None:
    """Two children for calls with `mode="process"` are ready: the first one's start counts as its call's."""
    from prefect_resilience.guards.timeouts.children import POOL
    from prefect_resilience.guards.timeouts.process_mode import ChildCall

    while POOL.ready < 2:
        if not POOL.starting:
            ChildCall(int, (), {}).call(100)
        time.sleep(0.01)


@pytest.fixture
def reply() -> type[Reply]:
    return Reply


@pytest.fixture(scope="module")
def little_to_collect() -> Iterator[None]:
    """Leave all that was there before out of each collection, which takes half a second otherwise."""
    gc.collect()
    gc.freeze()
    yield
    gc.unfreeze()
