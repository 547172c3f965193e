"""Helpers of the store tests."""

import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from prefect_resilience.stores import open_store

ROOT = Path(__file__).parents[2]


@pytest.fixture
def python() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """Start `python -c code *arguments` in the repository; killed at the end if it still runs."""
    started: list[subprocess.Popen[str]] = []

    def start(code: str, *arguments: object) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", code, *map(str, arguments)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
        )
        started.append(process)
        return process

    yield start
    for process in started:
        if process.poll() is None:
            process.kill()
        process.communicate()


@pytest.fixture(params=["sqlite", "postgres", "redis"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """An empty store of each kind."""
    own = {"memory": "memory://together", "sqlite": f"sqlite:///{tmp_path}/store.db"}
    return own.get(request.param) or request.getfixturevalue(f"{request.param}_url")


@pytest.fixture
def store(url: str) -> Iterator[Any]:
    """The open store at `url`."""
    store = open_store(url)
    yield store
    store.close()
