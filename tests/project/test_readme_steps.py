"""docs/install.md: from an empty folder to a flow under a worker, each command as it is on the page.

What is changed for the test: the port, so that it can run beside other servers; and in the short form pip
takes what the wheel depends on from the environment of these tests instead of fetching it.
"""

from __future__ import annotations

import os
import re
import signal
import site
import subprocess
from pathlib import Path

import pytest

from tests.free_ports import free_port

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs" / "install.md"
BLOCK = re.compile(r"^(?:`(?P<file>[\w.]+)`[^\n]*\n\n)?```(?P<language>\w+)\n(?P<code>.*?)^```$", re.M | re.S)

SITE_PACKAGES = next(path for path in site.getsitepackages() if path.endswith("site-packages"))
BORROW = f"""export PIP_NO_DEPS=1 PIP_IGNORE_INSTALLED=1
echo {SITE_PACKAGES} > $(python -c 'import site; print(site.getsitepackages()[0])')/borrowed.pth
printf '#!/bin/sh\\nexec python -m prefect "$@"\\n' > .venv/bin/prefect
chmod +x .venv/bin/prefect"""


def steps() -> list[tuple[str, str]]:
    """(the name of a file | "run", its text | commands), in the order of the page."""
    text = PAGE.read_text(encoding="utf-8").partition("\n## Extras\n")[0]
    return [(found["file"] or "run", found["code"]) for found in BLOCK.finditer(text)]


def script(borrow: bool) -> str:
    """All the steps as one shell session, with a line before each that says which one it is."""
    port = str(free_port())
    lines = ["set -e"]
    for number, (name, code) in enumerate(steps()):
        code = code.replace("4200", port)
        if name == "run":
            lines += [f'echo "step {number}"', code]
            if borrow and "-m venv" in code:
                lines[-1] = code.replace("\npip install", f"\n{BORROW}\npip install")
        else:
            lines.append(f"cat > {name} <<'END_OF_FILE'\n{code}END_OF_FILE")
    return "\n".join(lines)


def walk(tmp_path: Path, borrow: bool) -> str:
    environment = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PREFECT_", "RESILIENCE_", "COV_", "PYTEST_", "VIRTUAL_ENV", "SSL_CERT_FILE"))
    }
    if os.environ.get("AUTHORITIES"):
        environment["SSL_CERT_FILE"] = os.environ["AUTHORITIES"]
    text = script(borrow)
    port = re.search(r"127\.0\.0\.1:(\d+)/api", text)
    assert port is not None
    environment |= {
        "PREFECT_HOME": str(tmp_path / "home"),
        "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        "PREFECT_SERVER_API_PORT": port[1],
        "TMPDIR": str(tmp_path),
        "COLUMNS": "160",
    }
    log = tmp_path / "log.txt"
    with log.open("w") as out:
        session = subprocess.Popen(
            ["bash", "-c", text],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=out,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        try:
            code = session.wait(280 if borrow else 900)
        finally:
            # The worker, and the server if the steps did not come to stop it: all are of this session.
            for pid in members_of(session.pid):
                os.kill(pid, signal.SIGTERM)
            stop_server(tmp_path / "home")
    assert code == 0, log.read_text()
    return log.read_text()


def members_of(session: int) -> list[int]:
    """The processes of a session that go on."""
    found: list[int] = []
    for stat in Path("/proc").glob("[0-9]*/stat"):
        try:
            after_name = stat.read_text().rpartition(")")[2].split()
        except (FileNotFoundError, ProcessLookupError):
            continue
        if int(after_name[3]) == session:
            found.append(int(stat.parent.name))
    return found


def stop_server(home: Path) -> None:
    pid_file = home / "server.pid"
    if pid_file.exists():
        try:
            os.kill(int(pid_file.read_text()), signal.SIGTERM)
        except ProcessLookupError:
            pid_file.unlink()


def check(said: str) -> None:
    assert "Retrying (2/3) in" in said
    assert said.count("- Fallback 'value' used after 3 attempts") == 2
    assert "{'label': 'unknown'}" in said
    assert "finished successfully in 'Completed'" in said
    assert "run-summary-" in said
    assert re.search(r"(open|closed)\s+labels ", said)
    assert "Server stopped!" in said


@pytest.mark.long
@pytest.mark.timeout(300)
def test_each_step_as_it_stands(tmp_path: Path) -> None:
    check(walk(tmp_path, borrow=True))


@pytest.mark.long
@pytest.mark.timeout(1000)
def test_each_step_with_everything_fetched(tmp_path: Path) -> None:
    check(walk(tmp_path, borrow=False))


def test_the_flow_is_as_short_as_it_is_said_to_be() -> None:
    (flow,) = [code for name, code in steps() if name == "labels.py"]
    assert len(flow.splitlines()) <= 15
