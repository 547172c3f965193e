"""A fleet's store that real breakers have filled, and the command line, run as an operator runs it."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from prefect_resilience import CircuitBreaker
from prefect_resilience.guards.circuits.registry import flush_all, forget_circuits
from prefect_resilience.operations.cli.app import main

COMMAND = [sys.executable, "-m", "prefect_resilience"]
SECRET = "sk-ant-REDACTED"


@dataclass
class Done:
    """How a command ended."""

    code: int
    out: str
    err: str

    @property
    def json(self) -> Any:
        return json.loads(self.out)

    @property
    def sentence(self) -> str:
        """What went wrong: it must be one line on stderr, and no stack trace."""
        assert self.code == 1, self
        assert "Traceback" not in self.err
        assert self.err.count("\n") == 1, self.err
        return self.err.strip()


@pytest.fixture(autouse=True)
def environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in list(os.environ):
        if name.startswith(("PREFECT_RESILIENCE_", "RESILIENCE_")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("COLUMNS", "100")
    monkeypatch.setenv("PREFECT_RESILIENCE_STORE_URL", f"sqlite:///{tmp_path}/fleet.db")
    # How a terminal is drawn on must not hang on where the tests run.
    for name in ("FORCE_COLOR", "NO_COLOR", "TTY_COMPATIBLE", "TTY_INTERACTIVE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("TERM", "xterm-256color")


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/fleet.db"


def fails(text: str = "no answer") -> None:
    raise TimeoutError(text)


def call(breaker: CircuitBreaker, outcomes: str, text: str = "no answer") -> None:
    for outcome in outcomes:
        with suppress(TimeoutError):
            breaker.call(fails if outcome == "f" else str, text)


@pytest.fixture
def circuits(url: str) -> Iterator[str]:
    """Four circuits, one of each kind; the store's URL."""
    forget_circuits()
    call(CircuitBreaker("llm:secondary", store=url), "ssssssf")
    tripped = CircuitBreaker("llm:primary", failure_threshold=3, open_for=300, store=url)
    call(tripped, "ssssfff", f"POST https://api.example.com said no to {SECRET}")
    CircuitBreaker("orders", store=url).force_open("maintenance")
    CircuitBreaker("kg", store=url).disable("it trips on test data")
    flush_all()
    forget_circuits()
    yield url
    forget_circuits()


@pytest.fixture
def process() -> Callable[..., Done]:
    """The command line in a process of its own; nobody can be asked there."""

    def run(*words: str) -> Done:
        done = subprocess.run(
            [*COMMAND, *words],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        return Done(done.returncode, done.stdout, done.stderr)

    return run


@pytest.fixture
def started() -> Iterator[Callable[..., subprocess.Popen[str]]]:
    """A command that goes on, with pipes to it; ended with the test."""
    running: list[subprocess.Popen[str]] = []

    def start(*words: str, **options: Any) -> subprocess.Popen[str]:
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, **options}
        running.append(subprocess.Popen([*COMMAND, *words], text=True, **pipes))
        return running[-1]

    yield start
    for popen in running:
        popen.kill()
        popen.communicate()


@pytest.fixture
def cli(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Callable[..., Done]]:
    """The same in this process, for the many cases that a process each would take too long for."""
    log = logging.getLogger("prefect_resilience")
    handlers, propagate = list(log.handlers), log.propagate

    def run(*words: str) -> Done:
        capfd.readouterr()
        monkeypatch.setattr(sys, "argv", ["prefect-resilience", *words])
        monkeypatch.setattr(sys, "stdin", open(os.devnull))  # noqa: SIM115
        with pytest.raises(SystemExit) as left:
            main()
        out, err = capfd.readouterr()
        return Done(int(left.value.code or 0), out, err)

    yield run
    log.handlers[:], log.propagate = handlers, propagate
    forget_circuits()
