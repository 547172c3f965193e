"""A fleet's store that real breakers have filled, and the command line, run as an operator runs it."""

import io
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
from prefect_resilience.durable.effects.ledger import open_ledger
from prefect_resilience.errors.exceptions import CircuitOpenError
from prefect_resilience.graphs.plans.actions import REGISTERED
from prefect_resilience.guards.circuits.registry import flush_all, forget_circuits
from prefect_resilience.operations.cli.app import main
from prefect_resilience.stores.base import scan_all

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
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder; its modules, and the actions of the test, are forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.setattr(REGISTERED, "_known", {})
    modules = set(sys.modules)
    yield tmp_path
    for name in set(sys.modules) - modules:
        # What belongs to an installed package stays
        if str(tmp_path) in str(getattr(sys.modules[name], "__file__", "")):
            del sys.modules[name]


def stored(url: str | None = None) -> dict[str, int]:
    """Everything in the store, with its version; but for the batches' counts, which follow a moment later."""
    found = scan_all(open_ledger(url).store, "")
    return {place: document.version for place, document in found if not place.startswith("effects-batch/")}


@pytest.fixture
def url(tmp_path: Path) -> str:
    return f"sqlite:///{tmp_path}/fleet.db"


def fails(text: str = "no answer") -> None:
    raise TimeoutError(text)


def call(breaker: CircuitBreaker, outcomes: str, text: str = "no answer") -> None:
    for outcome in outcomes:
        with suppress(TimeoutError, CircuitOpenError):
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
def cli(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Iterator[Callable[..., Done]]:
    """The same in this process, for the many cases that a process each would take too long for."""
    log = logging.getLogger("prefect_resilience")
    handlers, propagate = list(log.handlers), log.propagate

    def run(*words: str, stdin: str | bytes = b"") -> Done:
        capfd.readouterr()
        raw = stdin.encode() if isinstance(stdin, str) else stdin
        monkeypatch.setattr(sys, "argv", ["prefect-resilience", *words])
        monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(raw), encoding="utf-8"))
        with pytest.raises(SystemExit) as left:
            main()
        out, err = capfd.readouterr()
        return Done(int(left.value.code or 0), out, err)

    yield run
    log.handlers[:], log.propagate = handlers, propagate
    forget_circuits()
