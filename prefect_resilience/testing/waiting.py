"""`no_wait`: retries without their pauses."""

from __future__ import annotations

from collections.abc import Generator
from contextlib import contextmanager

from prefect_resilience.guards.retries import pauses


@contextmanager
def no_wait() -> Generator[None, None, None]:
    """Retry at once while the block goes on: everything is decided and shown as usual, but nobody waits.

        with no_wait():
            assert labels(["aspirin"]) == [...]

    It holds for the threads of this process. In pytest, for all tests:

        @pytest.fixture(autouse=True)
        def at_once():
            with no_wait():
                yield
    """
    with pauses.skipped():
        yield
