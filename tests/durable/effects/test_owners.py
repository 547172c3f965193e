"""Processes that are suspended, hang or end while they make an effect, and a process that waits for them."""

import os
import signal
import subprocess
import time
from pathlib import Path

import pytest

from prefect_resilience import Done, NotDone, batch, settle
from prefect_resilience.durable.effects import owner, sequences
from prefect_resilience.durable.effects.ledger import Ledger, place_of
from prefect_resilience.durable.effects.model import Ask, InProgress
from prefect_resilience.errors.exceptions import EffectBusy, InDoubt
from prefect_resilience.stores import open_store
from tests.durable.effects import victim
from tests.durable.effects.sender import LAPSED, LONG_PAUSE, SHORT, mark, payment, send
from tests.prefect_runs import until


@pytest.fixture(autouse=True)
def short_times(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in SHORT.items():
        monkeypatch.setattr(owner, name, value)
    monkeypatch.setattr(sequences, "LONG_PAUSE", LONG_PAUSE)


class Sender:
    """Another process that makes the effect `pay:7` of batch `b`."""

    def __init__(self, folder: Path, url: str, how: str) -> None:
        self.folder = folder
        self.process = victim.context.Process(target=send, args=(folder, url, how))
        self.process.start()
        until(lambda: (folder / "entered").exists() or not self.process.is_alive())
        if "is stopped" in how:
            stat = Path(f"/proc/{self.process.pid}/stat")
            until(lambda: stat.read_text().rpartition(")")[2].split()[0] == "T")

    def signal(self, number: int) -> None:
        assert self.process.pid is not None
        os.kill(self.process.pid, number)

    def killed(self) -> None:
        self.process.kill()
        self.process.join(60)

    def ended(self) -> str:
        """What it said."""
        (self.folder / "go").touch()
        self.process.join(60)
        return (self.folder / "said").read_text()

    @property
    def sent(self) -> list[str]:
        path = self.folder / "sent"
        return path.read_text().split() if path.exists() else []


@pytest.fixture
def start(tmp_path: Path, shared: str):
    started: list[Sender] = []

    def start(how: str = "waits") -> Sender:
        started.append(Sender(tmp_path, shared, how))
        return started[-1]

    yield start
    for one in started:
        one.killed()


def pay_here(folder: Path, max_wait: float = 30.0) -> tuple[object, list[str]]:
    """Make the same effect in this process: the outcome, and the questions that `verify` got."""
    asked: list[str] = []

    def was_paid(key: str) -> Done | NotDone:
        asked.append(key)
        return Done("known") if (folder / "sent").exists() else NotDone()

    def work() -> int:
        mark(folder, "sent")
        return os.getpid()

    with batch("b"):
        try:
            return payment(work, was_paid, max_wait)(7), asked
        except Exception as error:
            return error, asked


@pytest.mark.parametrize("how", ["is stopped", "loses its store"])
def test_an_owner_of_this_machine_is_not_gone_while_its_process_lives(start, tmp_path, how):
    sender = start(how)
    outcome, asked = pay_here(tmp_path, max_wait=LAPSED)
    assert (type(outcome), asked) == (InDoubt, [])
    assert f"process {sender.process.pid}, which makes the call, hangs" in str(outcome)
    assert "--force" in str(outcome)
    if how == "is stopped":
        sender.signal(signal.SIGCONT)
    assert sender.ended() == str(sender.process.pid)
    outcome, asked = pay_here(tmp_path)
    assert (outcome, asked, len(sender.sent)) == (sender.process.pid, [], 1)


def test_an_owner_that_is_only_slow_is_busy(start, tmp_path):
    sender = start()
    outcome, asked = pay_here(tmp_path, max_wait=0.05)
    assert (type(outcome), asked) == (EffectBusy, [])
    assert sender.ended() == str(sender.process.pid)


def test_a_killed_owner_is_gone_at_once(start, tmp_path, monkeypatch):
    monkeypatch.setattr(owner, "LEASE_SECONDS", 1_000.0)
    sender = start("is stopped")
    sender.killed()
    assert pay_here(tmp_path) == (os.getpid(), ["pay:7"])


def test_elsewhere_nothing_is_asked_before_the_quiet_time_is_over(start, tmp_path, shared):
    began = time.monotonic()
    sender = start("is stopped elsewhere, sends by requests")
    assert pay_here(tmp_path) == (os.getpid(), ["pay:7"])
    quiet = SHORT["LEASE_SECONDS"] + SHORT["QUIET_SECONDS"] - 2 * SHORT["RENEW_SECONDS"]
    assert time.monotonic() - began > quiet
    # Its claim is no longer the last one: it learns that before it sends.
    sender.signal(signal.SIGCONT)
    assert "settled elsewhere while this process was suspended" in sender.ended()
    assert sender.sent == [str(os.getpid())]


def test_a_person_ends_an_owner_that_hangs(start, tmp_path, shared):
    start("is stopped")
    with pytest.raises(EffectBusy):
        settle("b", "pay:7", "done", 5)
    assert settle("b", "pay:7", "done", 5, force=True).state == "done"
    assert pay_here(tmp_path) == (5, [])


def test_two_stores_of_one_process_see_each_others_claims(shared, tmp_path):
    one, other = Ledger(open_store(shared)), Ledger(open_store(shared))
    other.owner = owner.Owner(other.store)
    place = place_of("b", "k")
    one.intend(place, "c-two-stores", "external", {"key": "k"})
    assert other.look(place) == InProgress()
    one.owner.drop("c-two-stores")
    assert isinstance(other.look(place), Ask)


def test_a_claim_that_its_process_gave_up_is_free_for_others(shared):
    """Such as that of a rollback that was interrupted in a notebook, whose process goes on."""
    store = open_store(shared)
    process = subprocess.Popen(["sleep", "600"])
    try:
        stat = owner._stat(process.pid)
        machine = owner._machine()
        assert stat is not None
        assert machine is not None
        here, other = owner.owner_in(store), owner.Owner(store)
        other.id = "/".join(
            [f"{other.id.partition('@')[0]}@{machine[0]}", machine[1], str(process.pid), stat[1]]
        )
        other.hold("kept")
        other.hold("given up")
        assert here.lives(other.id, "kept")
        assert here.lives(other.id, "given up")
        other.give_up("given up")
        until(lambda: not here.lives(other.id, "given up"))
        assert here.lives(other.id, "kept")
        assert other.hold("given up") == other.id, "a thread that comes late holds nothing"
        assert not here.lives(other.id, "given up")
    finally:
        process.kill()
        process.wait()
        other.forget()
