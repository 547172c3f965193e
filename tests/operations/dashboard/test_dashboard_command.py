"""`prefect-resilience dashboard` as an operator starts and ends it."""

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest

from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.operations.cli.fleet import dashboard

pytestmark = pytest.mark.slow

COMMAND = [sys.executable, "-m", "prefect_resilience", "dashboard"]


@contextmanager
def started(*words: str) -> Iterator[subprocess.Popen[str]]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
    with subprocess.Popen([*COMMAND, *words], **pipes) as process:  # type: ignore[call-overload]
        try:
            yield process
        finally:
            process.kill()


def test_it_serves_until_ctrl_c(url: str) -> None:
    with started("--port", "0", "--json") as process:
        assert process.stdout is not None
        told = json.loads(process.stdout.readline())
        assert told["read_only"] is False
        assert told["url"].startswith("http://127.0.0.1:")
        assert httpx.get(f"{told['url']}/state", timeout=30).json()["now"] > 0
        assert httpx.get(told["url"], headers={"Host": "evil.example"}).status_code == 403
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=30)
        assert (process.returncode, out, err) == (0, "", "")


def test_it_says_where_it_is_and_what_it_shows(url: str, tmp_path: Path) -> None:
    other = f"sqlite:///{tmp_path}/other.db"
    with started("--port", "0", "--read-only", "--store", other) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith(f"The dashboard of {other} is at http://127.0.0.1:")
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=30)
        assert "Traceback" not in err


def test_what_cannot_be_meant_is_one_sentence(url: str) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(ConfigurationError, match=rf"cannot listen on 127.0.0.1:{port} \("):
            dashboard(port=port)
    with pytest.raises(ConfigurationError, match="--port 70000 must be from 0 to 65535"):
        dashboard(port=70_000)
    with pytest.raises(ConfigurationError, match="the memory of one process"):
        dashboard(store="memory://x")
