"""`batches list, show, recover, settle, rollback, abandon, prune` on batches of real runs."""

from __future__ import annotations

from datetime import timedelta
from typing import Any
from uuid import uuid4

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.settings import PREFECT_API_URL, temporary_settings
from prefect.states import Crashed

from prefect_resilience import resilient_task
from prefect_resilience.durable.batches.edge import recovery
from prefect_resilience.effects import Effect, batch, batch_status, prune
from prefect_resilience.operations.cli import batches as commands
from prefect_resilience.operations.cli.app import app

KEY = "hunter2-never-to-be-seen"
undone: list[str] = []


pytestmark = pytest.mark.api


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


@resilient_task(effect=Effect(key="{name}"), retry=None)
def send(name: str) -> None:
    return None


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


@pytest.mark.smoke
def test_list(batches: str, cli: Any) -> None:
    done = cli("batches", "list", "--all", "--limit", "1000")
    assert done.code == 0, done
    rows = [line for line in done.out.splitlines() if line.strip().startswith(("? unknown", "✓ done"))]
    assert len(rows) == 2
    assert "in-doubt" in rows[0]
    assert "1 unknown," in rows[0]
    listed = own(batches, cli("batches", "list", "--all", "--limit", "1000", "--json").json)
    assert [one["batch_id"] for one in listed] == ["in-doubt", batches, "all-done"]
    assert (listed[0]["hint"]["strategy"], listed[0]["hint"]["waiting"]) == ("manual_only", ["doubt-hotel"])
    assert listed[1]["flow_run"]
    assert [one["batch_id"] for one in cli("batches", "list", "--open", "--json", *NO_RUNS).json] == [
        "in-doubt"
    ]
    quiet = cli("batches", "list", "--all", *NO_RUNS)
    assert "3 batches, 1 open, 1 with an unknown outcome, in sqlite" in quiet.out
    assert "The first 1 of 3 batches" in cli("batches", "list", "--all", "--limit", "1", *NO_RUNS).out
    assert "Must be >= 1" in cli("batches", "list", "--limit", "0").sentence
    assert "memory of one process" in cli("batches", "list", "--store", "memory://").sentence


def own(crashed: str, listed: list[Any]) -> list[Any]:
    """Those of this file: the API has flow runs of others that ended badly."""
    return [one for one in listed if one["batch_id"] in ("in-doubt", "all-done", crashed)]


NO_RUNS = ("--since", "2100-01-01T00:00")


@pytest.mark.requirement("004.01", "004.19")
def test_open_is_everything_that_needs_somebody(batches: str, cli: Any) -> None:
    def opened() -> dict[str, Any]:
        listed = cli("batches", "list", "--open", "--limit", "500", "--json").json
        assert all(one["open"] for one in listed)
        return {one["batch_id"]: one for one in listed}

    # All its effects are done, and its run crashed.
    crashed = opened()[batches]
    assert (crashed["ended"], crashed["done"], crashed["open"]) == ("Crashed", 1, True)
    assert crashed["hint"]["why"].startswith("its run crashed; every external effect up to 'ship' is done")
    shown = cli("batches", "show", batches, "--json").json
    assert crashed["hint"]["why"] == shown["hint"]["why"]
    assert shown["state"] == "Crashed"
    assert 0 <= shown["seconds_in_error"] < 600
    assert "occurred at" in cli("batches", "status", batches).out
    assert cli("batches", "batch-status", batches, "--json").json["occurred_at"] == shown["occurred_at"]
    quiet = cli("batches", "show", "all-done", "--json").json
    assert (quiet["state"], quiet["occurred_at"], quiet["seconds_in_error"]) == ("Completed", None, None)
    assert "✗ crashed" in cli("batches", "list").out
    assert "in-doubt" in opened()
    assert "all-done" not in opened()
    # Nothing was sent, and nothing is in the ledger: the run can be recovered all the same.
    with get_client(sync_client=True) as client:
        deployment_id = client.read_flow_run(batches).deployment_id
        run = str(client.create_flow_run_from_deployment(deployment_id).id)
        client.set_flow_run_state(run, Crashed(), force=True)
    assert run not in opened()
    listed = {one["batch_id"]: one for one in cli("batches", "list", "--limit", "500", "--json").json}
    assert (listed[run]["total"], listed[run]["open"]) == (0, False)
    assert cli("batches", "recover", batches).code == 0
    assert cli("batches", "abandon", run, "--yes").code == 0
    assert batches not in opened()
    after = {one["batch_id"]: one for one in cli("batches", "list", "--limit", "500", "--json").json}
    assert after[run]["state"] == "abandoned"
    assert run in {one["batch_id"] for one in cli("batches", "list", "--archived", "--json").json}


def test_without_the_api_effects_alone_say_what_is_open(batches: str, cli: Any) -> None:
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}):
        done = cli("batches", "list", "--open", "--json")
    assert [one["batch_id"] for one in done.json] == ["in-doubt"]
    assert done.code == 0
    assert done.err.startswith(
        "How flow runs ended is unknown, so batches are open only by their effects: the Prefect"
    )


def test_nothing_is_there(environment: None, cli: Any) -> None:
    assert "There are no batches in sqlite" in cli("batches", "list", *NO_RUNS).out
    assert "There are no open batches in sqlite" in cli("batches", "list", "--open", *NO_RUNS).out
    assert "There are no archived batches in sqlite" in cli("batches", "list", "--archived").out
    assert (
        "No batch or flow run 'x'. Check that PREFECT_RESILIENCE_STORE_URL"
        in cli("batches", "show", "x").sentence
    )
    assert cli("batches", "list", "--json", *NO_RUNS).json == []


def test_show(batches: str, cli: Any) -> None:
    done = cli("batches", "show", "in-doubt")
    assert done.code == 0, done
    assert "strategy = manual_only" in done.out
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
    assert "needs a person" in cli("batches", "show", "in-doubt").out


@pytest.mark.smoke
@pytest.mark.requirement("004.19")
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
    assert "already waits for a worker" in " ".join(again.out.split())
    assert "add --yes" in cli("batches", "recover", batches, "--force").sentence
    assert cli("batches", "recover", batches, "--strategy", "restart", "--force", "--yes").code == 0
    assert "restart, forced" in cli("batches", "show", batches).out
    doubtful = cli("batches", "recover", "in-doubt")
    assert (doubtful.code, "settle it" in doubtful.out) == (1, True)
    assert "restrat" in cli("batches", "recover", "x", "--strategy", "restrat").sentence


@pytest.mark.requirement("004.03")
def test_settle(batches: str, cli: Any) -> None:
    words = ("batches", "settle", "in-doubt", "doubt-hotel", "done")
    assert "is not JSON" in cli(*words, "--result", "m-1").sentence
    done = cli(*words, "--result", '"m-1"', "--external-id", "m-1", "--reason", "asked", "--json")
    assert (done.json["state"], done.json["result"], done.json["external_id"]) == ("done", "m-1", "m-1")
    assert "not in doubt" in cli(*words).sentence
    with batch("more"):
        trip("doubt")
    assert "so the next run may do it" in cli("batches", "settle", "more", "doubt", "not-done").out
    assert "did you mean 'doubt'" in cli("batches", "settle", "more", "dout", "done").sentence


def test_without_the_api_nobody_says_that_a_flow_run_does_not_exist(batches: str, cli: Any) -> None:
    nobody = str(uuid4())
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}):
        for command in ("show", "recover"):
            assert "Prefect API is unavailable" in cli("batches", command, nobody).sentence
        assert "Did you mean 'in-doubt'?" in cli("batches", "show", "in-doub").sentence
        assert cli("batches", "show", "in-doubt").code == 0


@pytest.mark.smoke
@pytest.mark.requirement("004.19")
def test_rollback(batches: str, cli: Any) -> None:
    assert "would be rolled back" in cli("batches", "rollback", "all-done", "--dry-run").out
    assert "add --yes" in cli("batches", "rollback", "all-done").sentence
    assert undone == []
    nowhere = cli("batches", "rollback", "all-done", "--to", "nowhere", "--yes").sentence
    assert "no savepoint 'nowhere'" in nowhere
    assert cli("batches", "recover", "all-done", "--rollback-to", "nowhere", "--yes").sentence == nowhere
    both = cli("batches", "recover", "all-done", "--rollback-to", "nowhere", "--strategy", "abandon")
    assert "cannot be combined" in both.sentence
    done = cli("batches", "rollback", "all-done", "--yes", "--reason", "called off")
    assert done.code == 0, done
    assert undone == ["train", "car"]
    assert "compensated" in cli("batches", "show", "all-done").out
    assert [one.outcome for one in batch_status("all-done").audit] == ["compensated"]
    assert batch_status("all-done").hint is None


def test_a_rollback_says_what_stays_done(batches: str, cli: Any) -> None:
    with batch("half"):
        trip("bus")
        send("postcard")
    dry = " ".join(cli("batches", "rollback", "half", "--dry-run").out.split())
    assert "half would be rolled back in part (compensate): a rollback was requested; " in dry
    assert "to compensate: 'bus'; " in dry
    assert "not to compensate: 'postcard' (it has no compensation)." in dry
    assert (undone, batch_status("half").audit) == ([], ())
    done = cli("batches", "rollback", "half", "--yes")
    said = "compensated: 'bus'; not compensated: 'postcard' (it has no compensation)."
    assert (done.code, said in " ".join(done.out.split())) == (0, True), done
    assert batch_status("half").audit[-1].why == f"a rollback was requested; {said[:-1]}"
    again = cli("batches", "rollback", "half", "--yes", "--json").json
    assert again["not_undone"] == [{"key": "postcard", "how": "skipped", "why": "it has no compensation"}]


def test_a_dry_run_has_the_exit_code_of_the_real_call(batches: str, cli: Any) -> None:
    ends = {"recover all-done": 0, "recover in-doubt": 1, "rollback in-doubt": 1, "abandon in-doubt": 0}
    for words, code in ends.items():
        assert cli("batches", *words.split(), "--dry-run").code == code, words
        assert cli("batches", *words.split(), "--yes").code == code, words
    assert "needs no recovery: its flow run completed" in cli("batches", "recover", "all-done").out


def test_a_rollback_that_undoes_nothing_does_not_say_that_it_did(batches: str, cli: Any) -> None:
    with batch("posted"):
        for name in ("a", "b", "c", "d"):
            send(name)
    for more in (["--dry-run"], ["--yes"]):
        done = cli("batches", "rollback", "posted", *more)
        out = " ".join(done.out.split())
        assert done.code == 1
        assert "needs a person" in out
        assert "and 1 more" in out
        assert "Not compensated: 'a' (it has no compensation)." in out
    assert "there is no verify to ask" in " ".join(
        cli("batches", "rollback", "in-doubt", "--dry-run").out.split()
    )
    assert cli("batches", "rollback", "in-doubt", "--yes").code == 1, "one of its effects is in doubt"


def test_giving_a_compensation_up(batches: str, cli: Any) -> None:
    words = ("batches", "settle", "all-done")
    kept = cli(*words, "car", "kept", "--reason", "no refund")
    assert (kept.code, "car stays done, and no rollback will compensate it" in kept.out) == (0, True), kept
    assert "a later run of the batch may repeat it" in " ".join(cli(*words, "train", "undone").out.split())
    done = cli("batches", "rollback", "all-done", "--yes")
    assert done.code == 0, done
    assert undone == []
    listed = cli("batches", "show", "all-done", "--json").json["effects"]
    assert [(one["key"], one["state"]) for one in listed] == [("car", "done"), ("train", "compensated")]
    assert "are only for the answer 'done'" in cli(*words, "car", "kept", "--external-id", "x").sentence


@pytest.mark.requirement("004.15")
def test_what_is_archived_can_be_read(batches: str, cli: Any) -> None:
    live = cli("batches", "show", "all-done", "--json").json
    assert live["archived"] is None
    assert {one.batch_id for one in prune(timedelta())} == {batches, "all-done"}
    listed = cli("batches", "list", "--all", "--json", *NO_RUNS).json
    assert [one["batch_id"] for one in listed] == ["in-doubt"]
    archived = cli("batches", "list", "--archived", "--json").json
    assert {one["batch_id"]: (one["state"], one["done"], one["open"]) for one in archived} == {
        batches: ("archived", 1, False),
        "all-done": ("archived", 2, False),
    }
    assert "cannot be combined" in cli("batches", "list", "--archived", "--open").sentence
    kept = cli("batches", "show", "all-done", "--json").json
    assert kept["effects"] == live["effects"]
    assert (kept["hint"], kept["archived"]["why"]) == (None, "it is old")
    assert [one["outcome"] for one in kept["audit"]] == ["pruned"]
    card = cli("batches", "show", "all-done")
    assert (card.code, "archived" in card.out, '"m-car"' in card.out) == (0, True, True), card
    assert (
        "has no effects in the ledger: it was archived"
        in cli("batches", "settle", "all-done", "car", "done").sentence
    )


def test_what_is_archived_is_neither_restarted_nor_rolled_back(batches: str, cli: Any) -> None:
    prune(timedelta())
    restart = ("batches", "recover", batches, "--strategy", "restart")
    refused = cli(*restart)
    out = " ".join(refused.out.split())
    assert (refused.code, "moved to the archive" in out) == (1, True), refused
    assert "a restart would repeat them" in out
    assert cli("batches", "rollback", "all-done", "--yes").code == 1
    assert undone == []
    assert "moved to the archive" in " ".join(cli("batches", "recover", "all-done").out.split())
    assert cli(*restart, "--force", "--yes").code == 0


@pytest.mark.requirement("004.09")
def test_abandon_and_prune(batches: str, cli: Any) -> None:
    assert "would be abandoned" in cli("batches", "abandon", "in-doubt", "--dry-run").out
    assert "add --yes" in cli("batches", "abandon", "in-doubt").sentence
    done = cli("batches", "abandon", "in-doubt", "--yes", "--reason", "done by hand")
    assert (done.code, "still in doubt: 'doubt-hotel'" in " ".join(done.out.split())) == (0, True), done
    assert "- abandoned" in cli("batches", "list", "--all", "--limit", "1000").out
    assert cli("batches", "settle", "in-doubt", "doubt-hotel", "not-done").code == 0
    again = cli("batches", "abandon", "in-doubt", "--yes", "--json").json
    assert again["action"] == "abandoned"
    assert again["why"].endswith("another run of the batch does the effects that are missing")
    assert [one.key for one in batch_status("in-doubt").effects] == ["flight"]
    assert "0 batches would be archived" in cli("batches", "prune", "--older-than", "1d", "--dry-run").out
    words = ("batches", "prune", "--older-than", "2100-01-01T00:00")
    assert "3 batches would be archived" in cli(*words, "--dry-run").out
    assert "add --yes" in cli(*words).sentence
    assert len(cli(*words, "--yes", "--json").json) == 3
    assert cli("batches", "list", "--json", *NO_RUNS).json == []
