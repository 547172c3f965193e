"""A project on disk, and nothing configured but what a test says."""

import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    for name in list(os.environ):
        if name.startswith(("PREFECT_RESILIENCE_", "RESILIENCE_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("PREFECT_RESILIENCE_STORE_URL", f"sqlite:///{tmp_path}/fleet.db")
    path, modules = list(sys.path), set(sys.modules)
    yield
    sys.path[:] = path
    for name in set(sys.modules) - modules:
        if name.startswith(("examined_", "shop")):
            del sys.modules[name]


@pytest.fixture
def project(tmp_path: Path) -> Callable[..., Path]:
    """Write a file of a project; its path."""

    def write(text: str, name: str = "shop.py") -> Path:
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
        return file

    return write
