"""`dead-letters list, show, replay, purge` on letters of real runs, and their flows."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import UUID

import pytest
from prefect import flow, task
from prefect.client.orchestration import get_client
from prefect.flows import load_flow_from_entrypoint
from prefect.states import Running
from pydantic import SecretStr

from prefect_resilience import ConfigurationError, dead_letters
from prefect_resilience.durable.letters.edge.operations import purge_dead_letters, replay_dead_letters
from prefect_resilience.operations.cli import letters as commands
from prefect_resilience.operations.cli.app import app
from prefect_resilience.tasks.edge.run_hooks import dead_letter

KEY = "hunter2-never-to-be-seen"
got: list[str] = []
broken = [True]


pytestmark = pytest.mark.api


@pytest.fixture(autouse=True)
def mounted() -> None:
    if "dead-letters" not in app:
        app.command(commands.app)


@task(on_failure=[dead_letter])
def send(message: str, when: datetime | None = None) -> None:
    if broken[0]:
        raise ConnectionError(f"no route for Bearer {KEY}")
    got.append(message)


@task(on_failure=[dead_letter])
def login(user: str, key: SecretStr) -> None:
    if broken[0]:
        raise PermissionError(user)
    got.append(key.get_secret_value())


@pytest.fixture
def letters(environment: None) -> list[dead_letters.DeadLetter]:
    """Two letters of `send` and one of `login`, the oldest first."""
    broken[0] = True
    got.clear()

    @flow
    def outer() -> None:
        send("one", datetime(2026, 11, 20, tzinfo=UTC), return_state=True)
        send("two", return_state=True)
        login("ada", SecretStr(KEY), return_state=True)

    outer()
    broken[0] = False
    return dead_letters.list()[::-1]


def test_list(letters: Any, cli: Any) -> None:
    done = cli("dead-letters", "list")
    assert done.code == 0, done
    rows = [line for line in done.out.splitlines() if "waiting" in line][:3]
    assert [letter.id in row for letter, row in zip(letters[::-1], rows, strict=True)] == [True] * 3
    assert "3 dead letters: 3 waiting, in sqlite" in done.out
    assert KEY not in done.out
    assert [item["name"] for item in cli("dead-letters", "list", "--json").json] == ["login", "send", "send"]


def test_list_narrows(letters: Any, cli: Any) -> None:
    def count(*words: str) -> int:
        return len(cli("dead-letters", "list", "--json", *words).json)

    assert count("--task", "send") == 2
    assert count("--since", "24h") == 3
    assert count("--since", "2100-01-01T00:00") == 0
    assert count("--limit", "1") == 1
    assert count("--status", "waiting", "--status", "in_doubt") == 3
    assert count("--status", "replayed") == 0
    assert "The 1 newest of 3 dead letters" in cli("dead-letters", "list", "--limit", "1").out
    assert "--since 'soon' is not a time" in cli("dead-letters", "list", "--since", "soon").sentence
    assert "Must be >= 1" in cli("dead-letters", "list", "--limit", "0").sentence
    assert "memory of one process" in cli("dead-letters", "list", "--store", "memory://").sentence


def test_show(letters: Any, cli: Any) -> None:
    done = cli("dead-letters", "show", letters[0].id)
    assert done.code == 0, done
    assert 'message = "one"' in done.out
    assert "2026-11-20" in done.out
    assert "Traceback" in done.out
    assert KEY not in done.out
    assert "<left out: secret>" in cli("dead-letters", "show", letters[2].id).out
    shown = cli("dead-letters", "show", letters[0].id, "--json").json
    assert shown["parameters"]["message"] == "one"
    assert shown["error"]["category"] == "network"
    assert "dead letter 'x' not found" in cli("dead-letters", "show", "x").sentence.lower()


@pytest.mark.smoke
def test_replay(letters: Any, cli: Any) -> None:
    assert "choose the letters" in cli("dead-letters", "replay").sentence.lower()
    assert "add --yes" in cli("dead-letters", "replay", "--all").sentence
    dry = cli("dead-letters", "replay", "--task", "send", "--dry-run")
    assert (dry.code, got) == (0, [])
    assert "would replay" in dry.out
    done = cli(
        "dead-letters", "replay", "--task", "send", "--since", "1h", "--rate", "1000", "--yes", "--json"
    )
    assert done.code == 0, done
    assert [one["result"] for one in done.json["outcomes"]] == ["replayed"] * 2
    assert got == ["one", "two"]
    skipped = cli("dead-letters", "replay", letters[2].id)
    assert skipped.code == 1
    assert "--set key=..." in " ".join(skipped.out.split())
    assert "No matching dead letters" in cli("dead-letters", "replay", "--task", "send").out


def test_replay_with_what_was_left_out(letters: Any, cli: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KEY_OF_ADA", KEY)
    done = cli("dead-letters", "replay", letters[2].id, "--set-env", "key=KEY_OF_ADA")
    assert done.code == 0, done
    assert got == [KEY]
    assert KEY not in done.out + done.err
    assert "no environment variable" in cli("dead-letters", "replay", "x", "--set-env", "a=NONE").sentence
    assert "PATH=VALUE" in cli("dead-letters", "replay", "x", "--set", "a").sentence
    assert commands.replay_values(["a=1", "b=[1]", "c={", 'd="x"', "e=true"], []) == {
        "a": "1",
        "b": [1],
        "c": "{",
        "d": "x",
        "e": True,
    }


def test_what_is_left_to_a_flow_run(letters: Any, cli: Any) -> None:
    """Nothing is wrong with it: the exit code is 0, and a line says why nothing was called."""
    with get_client(sync_client=True) as client:
        client.set_flow_run_state(UUID(letters[0].flow_run_id), Running(), force=True)
    done = cli("dead-letters", "replay", "--task", "send", "--yes")
    assert done.code == 0, done
    said = " ".join(done.out.split())
    assert "is Running: it may make the call itself" in said
    assert "2 letters: 2 skipped" in said
    assert "2 letters were skipped: the flow run is running" in said
    told = cli("dead-letters", "replay", letters[0].id, "--json")
    assert (told.code, told.json["outcomes"][0]["reason"], got) == (0, "run_goes_on", [])
    assert "1 letter was skipped: the flow run" in cli("dead-letters", "replay", letters[0].id).out
    assert cli("dead-letters", "replay", "--task", "send", "--limit", "1", "--force").code == 0
    assert got == []
    assert cli("dead-letters", "replay", letters[0].id, "--force").code == 0
    assert got == ["one"]


def test_passes_and_settled_letters(environment: None, cli: Any) -> None:
    broken[0] = True
    got.clear()
    passes: list[int] = []

    @flow(retries=2)
    def retried() -> None:
        passes.append(1)
        broken[0] = len(passes) < 3
        send("again")

    retried()
    (letter,) = dead_letters.list()
    (row,) = [line for line in cli("dead-letters", "list").out.splitlines() if letter.id in line]
    assert "✓ settled" in row
    assert " 3 " in row
    assert "1 dead letter: 1 settled" in cli("dead-letters", "list", "--status", "settled").out
    card = " ".join(cli("dead-letters", "show", letter.id).out.split())
    assert "outcome ✗ failed" in card
    assert "outcome ✓ succeeded" in card
    assert "it needs no replay" in card
    shown = cli("dead-letters", "show", letter.id, "--json").json
    assert [one["outcome"] for one in shown["passes"]] == ["failed", "failed", "succeeded"]
    again = cli("dead-letters", "replay", letter.id)
    assert (again.code, got) == (0, ["again"])
    assert len(cli("dead-letters", "purge", "--older-than", "2100-01-01T00:00", "--yes", "--json").json) == 1


def test_purge(letters: Any, cli: Any) -> None:
    assert "0 dead letters were purged" in cli("dead-letters", "purge", "--older-than", "1s").out
    cli("dead-letters", "replay", letters[0].id)
    words = ("dead-letters", "purge", "--older-than", "2100-01-01T00:00")
    assert "1 dead letter would be purged" in cli(*words, "--dry-run").out
    assert "add --yes" in cli(*words).sentence
    assert "1 dead letter was purged" in cli(*words, "--yes").out
    assert len(dead_letters.list()) == 2
    assert len(cli(*words, "--yes", "--include-waiting", "--json").json) == 2
    assert dead_letters.list() == []


def test_the_same_as_flows(letters: Any) -> None:
    where = "prefect_resilience.durable.letters.edge.operations"
    assert load_flow_from_entrypoint(f"{where}.replay_dead_letters").name == "replay-dead-letters"
    report = replay_dead_letters(task="send", dry_run=True)
    assert [one["result"] for one in report["outcomes"]] == ["would_replay"] * 2
    report = replay_dead_letters(task="send", since=datetime.now(UTC) - timedelta(hours=1), limit=1)
    assert (len(report["outcomes"]), got) == (1, ["one"])

    from prefect.blocks.system import Secret

    Secret(value=KEY).save("key-of-ada")  # type: ignore[unused-coroutine]
    report = replay_dead_letters(letters=[letters[2].id], secrets={"key": "key-of-ada"})
    assert report["outcomes"][0]["result"] == "replayed", report
    assert got == ["one", KEY]
    assert purge_dead_letters(older_than_days=1) == []
    assert len(purge_dead_letters(older_than_days=0, dry_run=True)) == 2
    assert len(purge_dead_letters(older_than_days=0)) == 2
    with pytest.raises(ConfigurationError, match="0 or more"):
        purge_dead_letters(older_than_days=-1)
