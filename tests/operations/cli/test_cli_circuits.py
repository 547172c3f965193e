"""`circuits list, show, open, close, disable, reset` on a store that real breakers have filled."""

import sqlite3
import time
import tomllib
from pathlib import Path
from typing import Any

import pytest

from prefect_resilience import CircuitBreaker, CircuitSnapshot, get_circuits
from prefect_resilience.errors.exceptions import CircuitOpenError
from tests.operations.cli.conftest import SECRET


def state_of(name: str, url: str) -> str:
    return next(circuit.state for circuit in get_circuits(url) if circuit.name == name)


# -- looking


def test_list_shows_those_first_that_refuse(circuits: str, cli: Any) -> None:
    done = cli("circuits", "list")
    assert (done.code, done.err) == (0, "")
    rows = [line for line in done.out.splitlines() if line.startswith((" !", " ✗", " -", " ✓"))]
    assert [row.split("  ")[0].strip() for row in rows] == [
        "! forced open",
        "✗ open",
        "- disabled",
        "✓ closed",
    ]
    assert "llm:primary" in rows[1]
    assert rows[1].split()[3:6] == ["7", "3", "3"]
    assert "in 4 min" in rows[1] or "in 5 min" in rows[1]
    assert "3 failures" in done.out
    assert "2 open, 1 disabled of 4 circuits, in sqlite" in done.out
    first = cli("circuits", "list", "--limit", "2")
    assert first.out.endswith("(the first 2 are shown)\n")
    assert "kg" not in first.out
    assert SECRET not in done.out


def test_list_as_json_is_snapshots_and_nothing_else(circuits: str, process: Any) -> None:
    done = process("circuits", "list", "--json")
    assert (done.code, done.err) == (0, "")
    read = [CircuitSnapshot.model_validate(item) for item in done.json]
    assert [(c.name, c.state) for c in read] == [
        ("orders", "forced_open"),
        ("llm:primary", "open"),
        ("kg", "disabled"),
        ("llm:secondary", "closed"),
    ]
    assert (read[1].window_failures, read[1].window_calls, read[1].consecutive_failures) == (3, 7, 3)
    assert SECRET not in done.out


def test_list_by_state(circuits: str, cli: Any) -> None:
    done = cli("circuits", "list", "--state", "open", "--state", "disabled", "--json")
    assert [item["name"] for item in done.json] == ["llm:primary", "kg"]
    done = cli("circuits", "list", "--state", "half_open")
    assert done.code == 0
    assert "No circuit is half_open: 2 open, 1 disabled of 4 circuits" in done.out


def test_an_empty_store_is_no_mistake(url: str, cli: Any) -> None:
    done = cli("circuits", "list")
    assert done.code == 0
    assert done.out.startswith(f"There are no circuits in {url} yet")
    assert cli("circuits", "list", "--json").json == []
    assert "the store has none yet" in cli("circuits", "show", "kg").sentence
    assert cli("circuits", "reset", "--all", "--yes", "--json").json == []


@pytest.mark.parametrize("width", ["80", "120"])
def test_no_row_is_cut(circuits: str, cli: Any, monkeypatch: pytest.MonkeyPatch, width: str) -> None:
    long = "http:orders.internal.example.com/a/path/that/goes/on/and/on"
    CircuitBreaker(long, store=circuits).force_open("x" * 200)
    monkeypatch.setenv("COLUMNS", width)
    done = cli("circuits", "list")
    assert max(len(line) for line in done.out.splitlines()[:-1]) <= int(width)
    # Folded where it must be, but all of it is there.
    lines = done.out.splitlines()
    (begin, end) = (lines[1].index(heading) for heading in ("circuit", "calls"))
    assert long in "".join(line[begin:end].strip() for line in lines)


def test_show_tells_everything(circuits: str, cli: Any) -> None:
    done = cli("circuits", "show", "llm:primary")
    assert (done.code, done.err) == (0, "")
    facts = dict(line.strip().split("  ", 1) for line in done.out.splitlines() if "  " in line.strip())
    assert "open" in facts["state"]
    assert facts["reason"].strip() == "3 failures in a row"
    assert "POST https://api.example.com said no" in facts["last error"]
    assert facts["opened at"].endswith((" ago)", "(now)"))
    assert "(in 4 min" in facts["retry at"] or "(in 5 min" in facts["retry at"]
    assert (facts["window calls"].strip(), facts["window failures"].strip()) == ("7", "3")
    assert SECRET not in done.out


# -- acting


def test_open_refuses_the_calls_of_the_fleet(circuits: str, process: Any) -> None:
    breaker = CircuitBreaker("llm:secondary", store=circuits, sync_interval=1e-9)
    assert breaker.call(str, "fine") == "fine"
    reason = f"the provider\nis down, key {SECRET}"
    done = process("circuits", "open", "llm:secondary", "--reason", reason, "--until", "10m", "--json")
    assert (done.code, done.err) == (0, "")
    (change,) = done.json
    assert change["name"] == "llm:secondary"
    assert change["before"]["state"] == "closed"
    assert change["after"]["state"] == "forced_open"
    assert change["after"]["retry_at"] == pytest.approx(time.time() + 600, abs=30)
    assert change["after"]["reason"].startswith("the provider is down, key ")
    assert SECRET not in done.out
    with pytest.raises(CircuitOpenError, match="the provider is down"):
        breaker.call(str, "refused")


def test_close_disable_and_reset_say_what_was_before(circuits: str, cli: Any) -> None:
    done = cli("circuits", "close", "orders")
    assert "! forced open  ✓ closed" in done.out
    assert "1 circuit closed for the whole fleet." in done.out
    assert state_of("orders", circuits) == "closed"
    done = cli("circuits", "disable", "orders", "--reason", "a test")
    assert "✓ closed  - disabled" in done.out
    assert state_of("orders", circuits) == "disabled"
    assert cli("circuits", "reset", "orders").code == 0
    assert state_of("orders", circuits) == "closed"


def test_a_glob_changes_those_it_matches(circuits: str, cli: Any) -> None:
    refused = cli("circuits", "open", "llm:*", "--reason", "x")
    assert refused.sentence.startswith("This would open 2 circuits for the whole fleet, and there is no")
    assert refused.sentence.endswith(": add --yes to confirm")
    assert state_of("llm:secondary", circuits) == "closed"
    done = cli("circuits", "open", "llm:*", "--reason", "x", "--yes", "--json")
    assert [(c["name"], c["after"]["state"]) for c in done.json] == [
        ("llm:primary", "forced_open"),
        ("llm:secondary", "forced_open"),
    ]
    assert state_of("kg", circuits) == "disabled"


@pytest.mark.requirement("003.18")
def test_reset_all_is_meant_twice(circuits: str, cli: Any) -> None:
    assert "add --yes" in cli("circuits", "reset", "--all").sentence
    assert state_of("orders", circuits) == "forced_open"
    assert len(cli("circuits", "reset", "--all", "--yes", "--json").json) == 4
    assert {circuit.state for circuit in get_circuits(circuits)} == {"closed"}


# -- mistakes


@pytest.mark.parametrize(
    ("words", "says"),
    [
        ("circuits open kg --reason y --until soon", "write a span as in 10m"),
        ("circuits open kg", "--reason"),
        ("circuits reset", "either NAME or --all"),
        ("circuits reset kg --all", "either NAME or --all"),
        ("circuits list --jsn", "Did you mean --json?"),
        ("circuits watch --interval 0", "--interval 0 must be"),
        ("circuits watch --interval nan", "--interval nan must be"),
        ("circuits list --store memory://", "the memory of one process"),
        ("circuits list --store fleet.db", "write sqlite:///path/to/file.db"),
    ],
)
def test_a_mistake_is_one_sentence(circuits: str, cli: Any, words: str, says: str) -> None:
    done = cli(*words.split())
    assert says in done.sentence
    assert done.out == ""


def test_an_empty_reason_is_none(circuits: str, cli: Any) -> None:
    assert "--reason is empty" in cli("circuits", "disable", "orders", "--reason", " ").sentence


def test_settings_that_cannot_be_read(cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PREFECT_RESILIENCE_TIMEOUTS", "{")
    assert "PREFECT_RESILIENCE_" in cli("circuits", "list").sentence


# -- a store that is away


def test_a_store_that_is_none(tmp_path: Path, cli: Any) -> None:
    (tmp_path / "broken.db").write_text("this has never been a database, however long one looks at it\n" * 50)
    done = cli("circuits", "list", "--json", "--store", f"sqlite:///{tmp_path}/broken.db")
    assert f"sqlite:///{tmp_path}/broken.db is unavailable (file is not a database)" in done.sentence
    assert "check that it is this fleet's file" in done.sentence
    assert done.out == ""


def test_a_server_that_is_away_keeps_its_password(cli: Any) -> None:
    done = cli("circuits", "list", "--store", "postgresql://bob:hunter2@127.0.0.1:1/fleet")
    assert "127.0.0.1:1" in done.sentence or "postgresql" in done.sentence
    assert "hunter2" not in done.out + done.err


def test_a_locked_store_can_be_read_and_not_changed(circuits: str, tmp_path: Path, cli: Any) -> None:
    patient = f"{circuits}?timeout=0.2"
    holder = sqlite3.connect(tmp_path / "fleet.db", isolation_level=None)
    holder.execute("BEGIN IMMEDIATE")
    try:
        assert len(cli("circuits", "list", "--json", "--store", patient).json) == 4
        done = cli("circuits", "close", "orders", "--json", "--store", patient)
        assert "is unavailable (database is locked)" in done.sentence
        assert done.json == [], "nothing was changed"
    finally:
        holder.close()
    assert state_of("orders", circuits) == "forced_open"


# -- the frame


def test_version_and_help(process: Any, cli: Any) -> None:
    version = process("--version")
    assert (version.code, version.err) == (0, "")
    assert version.out.strip()[0].isdigit()
    for command in ("list", "show", "open", "close", "disable", "reset", "watch"):
        done = cli("circuits", command, "--help")
        assert done.code == 0
        assert f"Example: prefect-resilience circuits {command}" in done.out
        assert "--store" in done.out
        assert "--json" in done.out


def test_the_console_script_is_this_program() -> None:
    project = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]
    assert project["scripts"] == {"prefect-resilience": "prefect_resilience.operations.cli.app:main"}
