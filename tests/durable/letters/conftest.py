"""Most of these tests run against a real Prefect API."""

from collections.abc import Callable, Iterator

import pytest

from prefect_resilience.durable.letters.queue import DeadLetterQueue
from prefect_resilience.stores import open_store
from tests.durable.letters.receiver import Receiver


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def server_url(request: pytest.FixtureRequest, tmp_path: object) -> str:
    """The URL of a real store of each kind."""
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/letters.db"
    return request.getfixturevalue(f"{request.param}_url")


@pytest.fixture
def queue(server_url: str) -> DeadLetterQueue:
    return DeadLetterQueue(open_store(server_url))


@pytest.fixture
def opened(tmp_path: object) -> Callable[[], DeadLetterQueue]:
    return lambda: DeadLetterQueue(open_store(f"sqlite:///{tmp_path}/letters.db"))


@pytest.fixture
def receiver(monkeypatch: pytest.MonkeyPatch) -> Iterator[Receiver]:
    made = Receiver()
    monkeypatch.setenv("RECEIVER", made.url)
    yield made
    made.close()
