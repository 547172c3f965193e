"""`dead-letters list` and `purge` on more letters than they show or keep."""

from datetime import timedelta
from typing import Any

import pytest

from prefect_resilience import open_store
from prefect_resilience.operations.cli import letters as commands
from prefect_resilience.operations.cli import look
from prefect_resilience.operations.cli.app import app
from tests.durable.test_many import bury


@pytest.fixture
def ids(url: str) -> list[str]:
    if "dead-letters" not in app:
        app.command(commands.app)
    store = open_store(url)
    return bury(store, 30, timedelta(days=1)) + bury(store, 2, timedelta(days=3), "waiting")


def test_the_pages_of_a_list(ids: list[str], url: str, cli: Any) -> None:
    words = ("dead-letters", "list", "--limit", "20", "--store", url, "--json")
    first = [one["id"] for one in cli(*words).json]
    assert first == ids[:20]
    assert [one["id"] for one in cli(*words, "--after", first[-1]).json] == ids[20:]
    assert "must be the id of a dead letter" in cli(*words, "--after", "nothing").sentence
    assert cli(*words, "--after", ids[-1]).json == []


def test_the_summary_counts_a_few_and_not_very_many(
    ids: list[str], url: str, cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    words = ("dead-letters", "list", "--limit", "5", "--store", url)
    assert "The 5 newest of 32 dead letters: 2 waiting, 30 replayed" in " ".join(cli(*words).out.split())
    monkeypatch.setattr(commands, "COUNTED", 10)
    assert "The 5 newest of more than 10 dead letters: 10 replayed" in " ".join(cli(*words).out.split())


def test_a_purge_keeps_the_first_letters_to_ask_about(
    ids: list[str], url: str, cli: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(look, "ASKED_ABOUT", 3)
    words = ("dead-letters", "purge", "--older-than", "12h", "--store", url)
    assert "30 dead letters would be purged" in cli(*words, "--dry-run").out
    assert len(cli(*words, "--dry-run", "--json").json) == 30
    assert "30 dead letters were purged" in cli(*words, "--yes").out
