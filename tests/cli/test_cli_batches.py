"""`batches list, show, recover, settle, rollback, abandon, prune` on batches of real runs."""

from __future__ import annotations

from typing import Any
from uuid import uuid4

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.states import Crashed

from prefect_resilience import resilient_task
from prefect_resilience.cli import batches as commands
from prefect_resilience.cli.app import app
from prefect_resilience.effects import Effect, batch, batch_status, recovery

KEY = "hunter2-never-to-be-seen"
undone: list[str] = []


pytestmark = pytest.mark.usefixtures("prefect_api")


@pytest.fixture(autouse=True)
def mounted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recovery, "CRASH_SETTLES", 0.0)
    if "batches" not in app:
        app.command(commands.app)


def unbook(name: str) -> None:
    undone.append(name)


@resilient_task(effect=Effect(key="{name}", compensate=unbook), retry=None)
def book(name: str) -> str:
    if name.startswith("doubt"):
        raise TimeoutError(f"no answer to Bearer {KEY}")
    return f"m-{name}"


@flow
def trip(*names: str) -> None:
    for name in names:
        book(name, return_state=True)


@flow
def voyage() -> None:
    trip("ship")


@pytest.fixture
def batches(environment: None) -> str:
    """One batch in doubt, one that is done; and the id of one whose deployed run crashed."""
    undone.clear()
    with batch("in-doubt"):
        trip("flight", "doubt-hotel")
    with batch("all-done"):
        trip("car", "train")
    deployment_id = voyage.to_deployment(f"d-{uuid4().hex[:8]}").apply()
    with get_client(sync_client=True) as client:
        run = client.create_flow_run_from_deployment(deployment_id)
        with batch(str(run.id)):
            trip("ship")
        client.set_flow_run_state(run.id, Crashed(), force=True)
    return str(run.id)


def test_list(batches: str, cli: Any) -> None:
    done = cli("batches", "list")
    assert done.code == 0, done
    rows = [line for line in done.out.splitlines() if line.strip().startswith(("? unknown", "✓ done"))]
    assert len(rows) == 3
    assert "in-doubt" in rows[0]
    assert "1 unknown, 1 done" in " ".join(done.out.split())
    assert "3 batches, 1 open, 1 in doubt, in sqlite" in done.out
    listed = cli("batches", "list", "--json").json
    assert [one["batch_id"] for one in listed] == ["in-doubt", batches, "all-done"]
    assert (listed[0]["hint"]["strategy"], listed[0]["hint"]["waiting"]) == ("manual_only", ["doubt-hotel"])
    assert listed[1]["flow_run"]
    assert [one["batch_id"] for one in cli("batches", "list", "--open", "--json").json] == ["in-doubt"]
    assert "The first 1 of 3 batches" in cli("batches", "list", "--limit", "1").out
    assert "1 or more" in cli("batches", "list", "--limit", "0").sentence
    assert "memory of one process" in cli("batches", "list", "--store", "memory://").sentence


def test_nothing_is_there(environment: None, cli: Any) -> None:
    assert "There are no batches in sqlite" in cli("batches", "list").out
    assert "there is no batch 'x'" in cli("batches", "show", "x").sentence.lower()
    assert cli("batches", "list", "--json").json == []


def test_show(batches: str, cli: Any) -> None:
    done = cli("batches", "show", "in-doubt")
    assert done.code == 0, done
    assert "manual_only, by a person" in done.out
    assert "? unknown" in done.out
    assert '"m-flight"' in done.out
    assert KEY not in done.out
    cli("batches", "recover", "in-doubt")
    shown = cli("batches", "show", "in-doubt", "--json").json
    assert [(one["key"], one["state"]) for one in shown["effects"]] == [
        ("flight", "done"),
        ("doubt-hotel", "unknown"),
    ]
    assert [(one["asked"], one["outcome"]) for one in shown["audit"]] == [("auto", "told")]
    assert "told" in cli("batches", "show", "in-doubt").out
    assert "did you mean 'in-doubt'?" in cli("batches", "show", "in-doub").sentence


def test_recover(batches: str, cli: Any) -> None:
    dry = cli("batches", "recover", batches, "--dry-run")
    assert dry.code == 0
    assert "would run again (restart_from_last_external)" in " ".join(dry.out.split())
    assert batch_status(batches).audit == ()
    done = cli("batches", "recover", batches, "--reason", "it is back", "--json")
    assert (done.code, done.json["action"], done.json["flow_run_id"]) == (0, "rescheduled", batches)
    with get_client(sync_client=True) as client:
        assert client.read_flow_run(batches).state.name == "AwaitingRetry"
    again = cli("batches", "recover", batches)
    assert again.code == 1
    assert "waits for a worker already" in " ".join(again.out.split())
    assert "add --yes" in cli("batches", "recover", batches, "--force").sentence
    assert cli("batches", "recover", batches, "--strategy", "restart", "--force", "--yes").code == 0
    told = cli("batches", "recover", "in-doubt")
    assert told.code == 1
    assert "settle it" in told.out
    assert "restrat" in cli("batches", "recover", "x", "--strategy", "restrat").sentence


def test_settle(batches: str, cli: Any) -> None:
    words = ("batches", "settle", "in-doubt", "doubt-hotel", "done")
    assert "is no JSON" in cli(*words, "--result", "m-1").sentence
    done = cli(*words, "--result", '"m-1"', "--external-id", "m-1", "--reason", "asked", "--json")
    assert (done.json["state"], done.json["result"], done.json["external_id"]) == ("done", "m-1", "m-1")
    assert "not in doubt" in cli(*words).sentence
    with batch("more"):
        trip("doubt")
    assert "may be done again" in cli("batches", "settle", "more", "doubt", "not-done").out
    assert "did you mean 'doubt'" in cli("batches", "settle", "more", "dout", "done").sentence


def test_rollback(batches: str, cli: Any) -> None:
    assert "would be undone" in cli("batches", "rollback", "all-done", "--dry-run").out
    assert "add --yes" in cli("batches", "rollback", "all-done").sentence
    assert undone == []
    nowhere = cli("batches", "rollback", "all-done", "--to", "nowhere", "--yes").sentence
    assert "no savepoint 'nowhere'" in nowhere
    done = cli("batches", "rollback", "all-done", "--yes", "--reason", "called off")
    assert done.code == 0, done
    assert undone == ["train", "car"]
    assert "compensated" in cli("batches", "show", "all-done").out
    assert [one.outcome for one in batch_status("all-done").audit] == ["error", "compensated"]
    assert batch_status("all-done").hint is None


def test_giving_a_compensation_up(batches: str, cli: Any) -> None:
    words = ("batches", "settle", "all-done")
    kept = cli(*words, "car", "kept", "--reason", "no refund")
    assert (kept.code, "car stays done, and no rollback will undo it" in kept.out) == (0, True), kept
    assert "a later run of the batch may do it anew" in " ".join(cli(*words, "train", "undone").out.split())
    done = cli("batches", "rollback", "all-done", "--yes")
    assert done.code == 0, done
    assert undone == []
    listed = cli("batches", "show", "all-done", "--json").json["effects"]
    assert [(one["key"], one["state"]) for one in listed] == [("car", "done"), ("train", "compensated")]
    assert "go with 'done' alone" in cli(*words, "car", "kept", "--external-id", "x").sentence


def test_abandon_and_prune(batches: str, cli: Any) -> None:
    assert "would be given up" in cli("batches", "abandon", "in-doubt", "--dry-run").out
    assert "add --yes" in cli("batches", "abandon", "in-doubt").sentence
    done = cli("batches", "abandon", "in-doubt", "--yes", "--reason", "done by hand")
    assert (done.code, "still in doubt: 'doubt-hotel'" in " ".join(done.out.split())) == (0, True), done
    assert "- abandoned" in cli("batches", "list").out
    forgot = cli("batches", "abandon", "in-doubt", "--yes", "--forget-doubts", "--json").json
    assert forgot["action"] == "abandoned"
    assert [one.key for one in batch_status("in-doubt").effects] == ["flight"]
    assert "0 batches would be archived" in cli("batches", "prune", "--older-than", "1d", "--dry-run").out
    words = ("batches", "prune", "--older-than", "2100-01-01T00:00")
    assert "3 batches would be archived" in cli(*words, "--dry-run").out
    assert "add --yes" in cli(*words).sentence
    assert len(cli(*words, "--yes", "--json").json) == 3
    assert cli("batches", "list", "--json").json == []
