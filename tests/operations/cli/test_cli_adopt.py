"""`adopt`: what it shows of a project, and that it changes nothing without --write."""

from pathlib import Path

import pytest

BEFORE = """from prefect import flow, task


@task(retries=2, retry_delay_seconds=5)
def charge(order):
    return httpx.post("https://pay.example.com", json=order)


@task
def clean(rows):
    return rows
"""
RETRY = "retry=Retry(attempts=3, backoff=Backoff.schedule([5]))"
EFFECT = 'effect=Effect(key="charge:{order}")'
AFTER = """from prefect import flow
from prefect_resilience import resilient_task


@resilient_task(retries=2, retry_delay_seconds=5)
def charge(order):
    return httpx.post("https://pay.example.com", json=order)


@resilient_task(retries=0)
def clean(rows):
    return rows
"""


@pytest.fixture
def project(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "flows"
    (folder / ".venv").mkdir(parents=True)
    (folder / "pay.py").write_text(BEFORE)
    (folder / "other.py").write_text("print('no task')\n")
    (folder / ".venv" / "installed.py").write_text(BEFORE)
    monkeypatch.chdir(tmp_path)
    return folder


def test_it_shows_a_diff_and_changes_nothing(project, cli):
    done = cli("adopt", "flows")
    assert done.code == 0
    assert "--- a/flows/pay.py\n+++ b/flows/pay.py\n" in done.out
    assert "-@task\n+@resilient_task(retries=0)\n" in done.out
    assert RETRY in " ".join(done.out.split())
    assert EFFECT in done.out
    assert "2 tasks would become resilient; 1 danger; nothing was changed: add --write" in done.out
    assert (project / "pay.py").read_text() == BEFORE


def test_it_writes_when_it_is_asked_to(project, cli):
    assert "2 tasks became resilient; 1 danger\n" in cli("adopt", "flows", "--write").out
    assert (project / "pay.py").read_text() == AFTER
    assert (project / ".venv" / "installed.py").read_text() == BEFORE
    assert cli("adopt", "flows").out == "No plain Prefect tasks found.\n"


def test_as_json(project, cli):
    [one] = cli("adopt", "flows/pay.py", "--json").json
    assert (one["file"], one["written"], one["trouble"]) == ("flows/pay.py", False, "")
    assert one["tasks"][0] == {
        "line": 4,
        "name": "charge",
        "kept": {"retries": "2", "retry_delay_seconds": "5"},
        "could_be": f"{RETRY}, {EFFECT}",
        "left": "",
        "unseen": [],
    }
    assert [danger["line"] for danger in one["dangers"]] == [6]


def test_a_file_keeps_its_encoding(project, cli):
    file = project / "pay.py"
    file.write_bytes(
        "# -*- coding: latin-1 -*-\r\n# é\r\nfrom prefect import task\r\nx = task(print)\r\n".encode(
            "latin-1"
        )
    )
    cli("adopt", "flows", "--write")
    assert file.read_bytes() == (
        "# -*- coding: latin-1 -*-\r\n# é\r\nfrom prefect_resilience import resilient_task\r\n"
        "x = resilient_task(retries=0)(print)\r\n"
    ).encode("latin-1")


def test_a_file_that_is_no_python_does_not_stop_the_others(project, cli):
    (project / "broken.py").write_text("def (:\n")
    (project / "bytes.py").write_bytes(b"\xff\xfe")
    out = cli("adopt", "flows").out
    assert "cannot be read" in out
    assert "2 tasks would become resilient" in out


def test_a_path_that_is_not_there_is_one_sentence(project, cli):
    assert cli("adopt", "flows/pai.py").sentence == "There is no flows/pai.py; did you mean 'flows/pay.py'?"


def test_several_paths_are_read_once_each(project, cli):
    (project / "rows.py").write_text("def keep(row): ...\n")
    (project / "more.py").write_text(
        "from prefect import task\nfrom rows import keep\nfrom sys import exit\n"
        "@task\ndef work(row):\n    keep(row)\n    exit(0)\n"
    )
    done = cli("adopt", "flows/pay.py", "flows/more.py", "flows")
    assert "3 tasks would become resilient" in done.out
    said = " ".join(done.out.split())
    assert "not judged: line 6: keep(), it is in another file → Read them yourself" in said
    assert "Not seen: writes in other files and in libraries" in said


def test_no_path_is_a_mistake(project, cli):
    done = cli("adopt")
    assert (done.code, "as in `adopt flows/`" in done.err) == (1, True)
