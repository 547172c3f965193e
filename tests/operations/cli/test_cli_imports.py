"""A command imports what it needs: a list of the store nothing of Prefect, and a report only its client."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from prefect_resilience.base.edge import current_settings, prefect_files
from prefect_resilience.durable.effects.ledger import open_ledger, place_of
from prefect_resilience.operations.cli.app import COMMANDS
from tests.operations.cli.conftest import COMMAND

SERVER_AND_ENGINE = ("prefect.server", "prefect.flow_engine", "prefect.task_engine", "prefect.flows")


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A home without any settings of Prefect."""
    for name in list(os.environ):
        if name.startswith("PREFECT_") and not name.startswith("PREFECT_RESILIENCE_"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def run(*words: str) -> tuple[int, str, set[str]]:
    """The exit code of a command, its answer, and the modules that it imported."""
    command = [COMMAND[0], "-X", "importtime", *COMMAND[1:], *words]
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    lines = [line for line in done.stderr.splitlines() if line.startswith("import time:")]
    return done.returncode, done.stdout, {line.rpartition("|")[2].strip() for line in lines}


@pytest.mark.parametrize(
    "words", ["--help", "circuits list", "batches list", "dead-letters list", "plan schema"]
)
def test_what_reads_the_store_alone_imports_nothing_of_prefect(circuits: str, home: Path, words: str) -> None:
    batch = str(uuid4())
    open_ledger(circuits).intend(place_of(batch, "k"), "c", "external", {"key": "k", "batch": batch})
    code, out, imported = run(*words.split())
    assert code == 0
    assert "prefect_resilience.operations.cli.look" in imported
    assert not [name for name in imported if name.partition(".")[0] == "prefect"]
    if words == "--help":
        assert all(f"{name}: {about}" in " ".join(out.split()) for name, _, about in COMMANDS)


def test_a_report_imports_neither_server_nor_engine(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_API_URL", "http://127.0.0.1:9/api")
    code, _, imported = run("report")
    assert code == 1  # no server answers there
    assert "prefect.client.orchestration" in imported
    assert not [name for name in imported if name.startswith(SERVER_AND_ENGINE)]


def test_the_help_of_a_command_is_its_docstring(cli: Any) -> None:
    assert "Example: prefect-resilience report --since 7d" in cli("report", "--help").out


@pytest.mark.parametrize(
    ("profiles", "address"),
    [
        ("", None),
        ('active = "local"', "http://127.0.0.1:4200/api"),
        ('active = "fleet"\n[profiles.fleet]\nPREFECT_API_URL = "http://fleet/api"', "http://fleet/api"),
    ],
)
def test_the_address_of_the_api_without_prefect(
    home: Path, monkeypatch: pytest.MonkeyPatch, profiles: str, address: str | None
) -> None:
    (home / ".prefect").mkdir()
    (home / ".prefect" / "profiles.toml").write_text(profiles)
    monkeypatch.delitem(sys.modules, "prefect")
    prefect_files._sources.cache_clear()
    assert current_settings.api_url() == address
    monkeypatch.setenv("PREFECT_API_URL", "http://other/api")
    assert current_settings.api_url() == "http://other/api"
    prefect_files._sources.cache_clear()


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion(home: Path, cli: Any, shell: str) -> None:
    done = cli("--install-completion", "--shell", shell, "--output", str(home / "completion"))
    assert (done.code, done.err) == (0, "")
    script = (home / "completion").read_text()
    assert all(word in script for word in ("dead-letters", "replay", "older-than"))
