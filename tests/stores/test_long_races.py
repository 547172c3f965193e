"""16 writers, 1,000 swaps each, on one document of each store: `pytest -m long tests/stores`."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

from prefect_resilience.stores import open_store
from prefect_resilience.testing.stores import count_together
from tests.stores.counting import COUNT

pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]

WRITERS = 16
SWAPS = 1000
Start = Callable[..., "subprocess.Popen[str]"]


@pytest.fixture
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "memory":
        return "memory://long"
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/long.db"
    return request.getfixturevalue(f"{request.param}_url")


@pytest.mark.parametrize("url", ["memory", "sqlite", "postgres", "redis"], indirect=True)
def test_no_update_of_sixteen_threads_is_lost(url: str) -> None:
    count_together(open_store(url), "count", WRITERS, SWAPS)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system has no fork")
@pytest.mark.parametrize("url", ["sqlite", "postgres", "redis"], indirect=True)
def test_no_update_of_sixteen_processes_is_lost(python: Start, url: str) -> None:
    process = python(COUNT, url, WRITERS, SWAPS, 1)
    _, errors = process.communicate(timeout=800)
    assert (process.returncode, errors) == (0, "")
    found = open_store(url).load("count")
    assert found is not None
    assert found.value == WRITERS * SWAPS
