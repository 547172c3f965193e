"""`circuits watch`, and being asked: on pipes and on a real terminal."""

import os
import pty
import re
import select
import signal
import subprocess
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from prefect_resilience import get_circuits
from prefect_resilience.guards.circuits.breaker import get_circuit
from prefect_resilience.operations.cli import circuits as commands
from tests.operations.cli.conftest import COMMAND

pytestmark = pytest.mark.slow

WAIT = 45.0


class Terminal:
    """A real terminal of 100 columns with a command running in it."""

    def __init__(self, *words: str) -> None:
        self._ours, theirs = pty.openpty()
        self.popen = subprocess.Popen([*COMMAND, *words], stdin=theirs, stdout=theirs, stderr=theirs)
        os.close(theirs)
        self.seen = ""

    def wait_for(self, text: str) -> None:
        deadline = time.monotonic() + WAIT
        while text not in self.seen:
            assert time.monotonic() < deadline, self.seen
            if not self._read():
                assert text in self.seen, self.seen

    def end(self) -> int:
        while self._read():
            pass
        return self.popen.wait(WAIT)

    def write(self, text: str) -> None:
        os.write(self._ours, text.encode())

    def _read(self) -> bool:
        """Take in what comes next; False when the command has ended."""
        if not select.select([self._ours], [], [], WAIT)[0]:
            return False
        try:
            data = os.read(self._ours, 65_536)
        except OSError:  # Linux says so when the last writer is gone
            return False
        self.seen += re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", data.decode(errors="replace"))
        return bool(data)

    def close(self) -> None:
        self.popen.kill()
        self.popen.wait()
        os.close(self._ours)


@pytest.fixture
def terminal() -> Iterator[Callable[..., Terminal]]:
    opened: list[Terminal] = []

    def make(*words: str) -> Terminal:
        opened.append(Terminal(*words))
        return opened[-1]

    yield make
    for one in opened:
        one.close()


@pytest.mark.parametrize("words", [("--json",), ()])
def test_each_reading_is_printed(
    circuits: str, cli: Any, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...]
) -> None:
    pauses = iter((0.1, 0.1))

    def pause(seconds: float) -> None:
        if next(pauses, None) != seconds:
            raise KeyboardInterrupt

    monkeypatch.setattr(commands, "sleep", pause)
    done = cli("circuits", "watch", "--interval", "0.1", *words)
    assert (done.code, done.err) == (0, "")
    names = re.findall("orders|llm:primary|kg|llm:secondary", done.out)
    assert names == ["orders", "llm:primary", "kg", "llm:secondary"] * 3
    assert len(done.out.splitlines()) == 3 or not words


def test_watch_on_a_terminal_is_drawn_in_place(circuits: str, terminal: Any) -> None:
    screen = terminal("circuits", "watch", "--interval", "0.1")
    screen.wait_for("2 open, 1 disabled of 4 circuits")
    screen.wait_for("✗ open")
    get_circuit("orders", circuits).force_closed()
    screen.wait_for("1 open, 1 disabled of 4 circuits")
    screen.popen.send_signal(signal.SIGINT)
    assert screen.end() == 0
    assert "Traceback" not in screen.seen


@pytest.mark.parametrize(("answer", "code", "after"), [("n", 1, "forced_open"), ("y", 0, "closed")])
def test_a_person_is_asked(circuits: str, terminal: Any, answer: str, code: int, after: str) -> None:
    screen = terminal("circuits", "reset", "--all")
    screen.wait_for("Reset 4 circuits for the whole fleet?")
    assert "! forced open  orders" in screen.seen
    screen.write(f"{answer}\n")
    assert screen.end() == code
    assert next(c.state for c in get_circuits(circuits) if c.name == "orders") == after


def test_watch_outlives_an_outage(tmp_path: Path, cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "fleet.db").mkdir()
    monkeypatch.setattr(commands, "sleep", _stop)
    done = cli("circuits", "watch", "--json")
    assert (done.code, done.out) == (0, "")
    assert re.match(r"The store sqlite:///\S+ is unavailable \(", done.err)


def _stop(_: float) -> None:
    raise KeyboardInterrupt
