"""A name that nobody knows is an error, exit code 1, with the nearest one that exists: in every command."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cyclopts import App
from prefect import flow

from prefect_resilience import CircuitBreaker, dead_letters, resilient_task
from prefect_resilience.effects import Effect, batch, savepoint
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.guards.circuits.registry import flush_all, forget_circuits
from prefect_resilience.operations.cli.app import app
from tests.operations.cli.conftest import stored

pytestmark = pytest.mark.api

# No other test of the session has runs of these names.
MARK = "7f3a91"
LOST = f"send-invoice-{MARK}"


@resilient_task(name=LOST, retry=None, dead_letter=True)
def lose() -> None:
    raise ConnectionError("no answer")


@resilient_task(effect=Effect(key="{name}"), retry=None)
def book(name: str) -> str:
    return f"m-{name}"


@flow
def shopping() -> None:
    with batch("invoices"):
        book("invoice:7")
        savepoint("before-payment")
    lose(return_state=True)


@pytest.fixture(scope="module")
def shop(prefect_api: None, tmp_path_factory: pytest.TempPathFactory) -> str:
    """A store that has one of each; its URL."""
    url = f"sqlite:///{tmp_path_factory.mktemp('shop')}/fleet.db"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PREFECT_RESILIENCE_STORE_URL", url)
        forget_circuits()
        breaker = CircuitBreaker("llm:primary", store=url)
        breaker.call(str)
        flush_all()
        shopping()
        forget_circuits()
    return url


@pytest.fixture(autouse=True)
def folder(shop: str, environment: None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A project with a plan and its actions, and the store of the shop."""
    monkeypatch.setenv("PREFECT_RESILIENCE_STORE_URL", shop)
    monkeypatch.setattr(book.fn, "__module__", __name__)
    monkeypatch.chdir(tmp_path)
    (tmp_path / "research.json").write_text(
        json.dumps({"tasks": [{"id": "a", "type": "look"}], "inputs": {"drug": 1}})
    )
    (tmp_path / "looking.py").write_text(
        "from prefect_resilience import action\n\n@action('look')\ndef look(): ...\n"
    )
    return tmp_path


NOBODY = "No batch or flow run 'invoice'. Did you mean 'invoices'?"
NO_CIRCUIT = "There is no circuit 'llm:primry'; did you mean 'llm:primary'?"
NO_TASK = f"There is no dead letter of a task 'send-invioce-{MARK}'. Did you mean '{LOST}'?"

# The command, and what it says. Where it stands for itself, the nearest name is in it.
WRONG: list[tuple[str, str]] = [
    ("circuits show llm:primry", NO_CIRCUIT),
    ("circuits open llm:primry --reason x", NO_CIRCUIT),
    ("circuits close llm:primry", NO_CIRCUIT),
    ("circuits disable llm:primry --reason x", NO_CIRCUIT),
    ("circuits reset llm:primry", NO_CIRCUIT),
    ("circuits reset lm:* --yes", "There is no circuit 'lm:*'; write one of llm:primary"),
    ("circuits list --state opne", 'Did you mean "open"?'),
    ("batches show invoice", NOBODY),
    ("batches status invoice", NOBODY),
    ("batches batch-status invoice", NOBODY),
    ("batches recover invoice", NOBODY),
    ("batches recover invoices --strategy restrat", 'Did you mean "restart"?'),
    ("batches settle invoice invoice:7 done", NOBODY),
    ("batches settle invoices invoice:8 done", "did you mean 'invoice:7'?"),
    ("batches settle invoices invoice:7 don", 'Did you mean "done"?'),
    ("batches reopen invoice --yes", NOBODY),
    ("batches rollback invoice --yes", NOBODY),
    ("batches rollback invoices --to before-paymnt --yes", "did you mean 'before-payment'?"),
    ("batches abandon invoice --yes", NOBODY),
    ("dead-letters show LETTER", "; did you mean '"),
    ("dead-letters replay LETTER", "; did you mean '"),
    (f"dead-letters list --task send-invioce-{MARK}", NO_TASK),
    (f"dead-letters replay --task send-invioce-{MARK}", NO_TASK),
    ("dead-letters list --status wating", 'Did you mean "waiting"?'),
    ("plan run reserch.json", "did you mean 'research.json'?"),
    ("plan run research.json --actions lookin", "did you mean 'looking'?"),
    ("plan run research.json --actions looking --input durg=1", "did you mean 'drug'?"),
    ("plan validate reserch.json --actions looking", "did you mean 'research.json'?"),
    ("plan graph reserch.json", "did you mean 'research.json'?"),
    ("doctor lookin.py", "did you mean 'looking.py'?"),
    ("install --notification-block slack-webhok/nobody", "There is no block 'slack-webhok/nobody'"),
    ("adopt nowhere.py", "There is no nowhere.py"),
    ("runs wake tidy-newt", "No parked flow run 'tidy-newt'"),
    ("circuts list", 'Did you mean "circuits"?'),
    ("batches lst", 'Did you mean "list"?'),
    ("batches list --al", "--all"),
]

# What takes the name of nothing that has to be there: times, files to be written, what there is as a whole.
NAMELESS = {"batches list", "batches prune", "circuits watch", "dashboard", "dead-letters purge"}
NAMELESS |= {"limits list", "plan schema", "report", "runs list", "runs parked"}
# Their --task is tried on recorded runs, in tests/operations/tuning/test_ways_in.py.
NAMELESS |= {"rehearse", "tune", "what-if"}


@pytest.mark.parametrize(("words", "said"), WRONG, ids=[words for words, _ in WRONG])
def test_a_wrong_name_is_an_error_with_the_nearest(words: str, said: str, cli: Any, shop: str) -> None:
    (letter,) = dead_letters.list(store=shop)
    slipped = letter.id[:-1] + ("0" if letter.id[-1] != "0" else "1")
    before = stored(shop)
    done = cli(*words.replace("LETTER", slipped).split())
    assert done.code == 1, done
    assert said in " ".join((done.out + done.err).split()), done
    assert "Traceback" not in done.err
    assert stored(shop) == before, "something was written"


def test_no_command_is_left_out() -> None:
    """Each command is in the table, or takes no name."""
    tried = {" ".join(word for word in words.split()[:2]) for words, _ in WRONG}
    tried |= {words.split()[0] for words, _ in WRONG}
    for name in commands(app):
        assert name in tried | NAMELESS, name


def commands(of: App, prefix: str = "") -> list[str]:
    found: list[str] = []
    for name in of:
        if name.startswith("-"):
            continue
        inner = of[name]
        deeper = commands(inner, f"{prefix}{name} ")
        found += deeper or [f"{prefix}{name}"]
    return found


def test_a_task_of_another_name_has_no_letters_and_that_is_no_error(cli: Any, shop: str) -> None:
    done = cli("dead-letters", "replay", "--task", f"goes-well-{MARK}")
    assert (done.code, "nothing to replay" in done.out) == (0, True), done


def test_the_functions_say_the_same(shop: str) -> None:
    with pytest.raises(ConfigurationError, match=f"Did you mean '{LOST}'"):
        dead_letters.replay(task=f"send-invioce-{MARK}", store=shop)
