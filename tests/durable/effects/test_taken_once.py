"""Functions that change their arguments: the key is taken once, and the effect is sent once."""

import dataclasses
import threading
from collections import OrderedDict
from collections.abc import Callable
from datetime import datetime, timedelta
from enum import Enum
from typing import Any

import pytest
from pydantic import BaseModel, PrivateAttr

from prefect_resilience import (
    AttemptTimeout,
    ConfigurationError,
    Done,
    Effect,
    EffectKeyReused,
    InDoubt,
    NotDone,
    NotSent,
    Retry,
    batch,
    batch_status,
    resilient,
    rollback,
    settle,
)
from prefect_resilience.durable.effects.aliases import ALIASES
from prefect_resilience.durable.effects.ledger import PREFIX, Ledger, open_ledger
from prefect_resilience.effects import list_batches, prune
from prefect_resilience.stores.base import scan_all
from tests.prefect_runs import until


@pytest.fixture(autouse=True)
def store(tmp_path, monkeypatch) -> str:
    url = f"sqlite:///{tmp_path}/effects.db"
    monkeypatch.setenv("PREFECT_RESILIENCE_STORE_URL", url)
    SENT.clear()
    return url


SENT: list[Any] = []


class Order(BaseModel):
    id: int = 1
    lines: list[int] = [1]
    _seen: int = PrivateAttr(default=0)


@dataclasses.dataclass
class Parcel:
    weight: int = 1


class Account:
    def __init__(self) -> None:
        self.id = "a"


class Colours(Enum):
    ALL = ["red"]  # noqa: RUF012


CHANGES: dict[str, tuple[Callable[[], Any], Callable[[Any], Any]]] = {
    "dict": (lambda: {"id": 1}, lambda it: it.update(status="charged")),
    "list": (lambda: [1, 2, 3, 4, 5, 6], list.pop),
    "set": (lambda: {1, 2, 3}, set.pop),
    "model": (Order, lambda it: it.lines.append(2)),
    "private": (Order, lambda it: setattr(it, "_seen", it._seen + 1)),
    "dataclass": (Parcel, lambda it: setattr(it, "weight", it.weight + 1)),
    "ordered": (lambda: OrderedDict(a=1, b=2, c=3), lambda it: it.move_to_end("a")),
    "enum": (lambda: Colours.ALL, lambda it: it.value.append("blue")),
}


def charging(change: Callable[[Any], Any], outcomes: list[Any] | None = None, **options: Any) -> Any:
    """An effect that changes its argument, and then ends as the next of `outcomes` says."""
    # The scope stands for the name of a function at the top of a module.
    made = Effect(**{"scope": "" if "key" in options else "charge", **options})

    @resilient(effect=made, retry=Retry(attempts=2, backoff="none", retry_on=[NotSent, ConnectionError]))
    def charge(it: Any) -> str:
        change(it)
        outcome = outcomes.pop(0) if outcomes else None
        if outcome != NotSent:
            SENT.append(it)
        if outcome is not None:
            raise outcome("no answer")
        return "charged"

    return charge


def passes(call: Callable[..., Any], *arguments: Any, number: int = 3) -> list[Any]:
    ends: list[Any] = []
    for _ in range(number):
        with batch("b"):
            try:
                ends.append(call(*arguments))
            except Exception as error:
                ends.append(type(error))
    return ends


@pytest.mark.parametrize("kind", CHANGES)
def test_a_changed_argument_is_no_other_effect(kind):
    make, change = CHANGES[kind]
    assert passes(charging(change), make()) == ["charged"] * 3
    assert len(SENT) == 1
    (effect,) = batch_status("b").effects
    assert (effect.state, effect.attempts) == ("done", 1)
    assert [one.total for one in list_batches()] == [1], "an alias is no effect"


@pytest.mark.parametrize("kind", ["dict", "list", "model"])
@pytest.mark.parametrize(
    ("outcomes", "ends", "sent"),
    [
        ([NotSent, NotSent, NotSent], [NotSent, "charged", "charged"], 1),
        ([NotSent], ["charged"] * 3, 1),
        ([ConnectionError], [InDoubt] * 3, 1),
    ],
)
def test_a_failed_call_that_changed_its_argument(kind, outcomes, ends, sent):
    """Each call changes the argument again: the third pass asks for an alias of an alias."""
    make, change = CHANGES[kind]
    assert passes(charging(change, [*outcomes]), make()) == ends
    assert len(SENT) == sent
    assert len(batch_status("b").effects) == 1


def test_verify_gets_the_arguments_as_they_were():
    asked: list[Any] = []

    def verify(key: str, it: dict) -> Done | NotDone:
        asked.append((key, dict(it)))
        return Done("verified") if len(asked) > 1 else NotDone()

    change = CHANGES["dict"][1]
    call = charging(change, [ConnectionError, ConnectionError], verify=verify, key="charge:{it[id]}")
    assert passes(call, {"id": 1}) == ["verified"] * 3
    assert asked == [("charge:1", {"id": 1})] * 2
    call = charging(lambda it: it.clear(), [ConnectionError], verify=verify, scope="other")
    assert passes(call, {"id": 2}, number=1) == ["verified"]
    assert asked[-1][1] == {"id": 2}


def restore(it: dict, result: Any) -> None:
    SENT.append(("restored", it))


def test_a_compensation_gets_the_arguments_as_they_were():
    call = charging(CHANGES["dict"][1], [NotSent], compensate=restore)
    assert passes(call, {"id": 1}, number=2) == ["charged"] * 2
    assert rollback("b").complete
    assert SENT[-1] == ("restored", {"id": 1})


@pytest.mark.parametrize(
    ("key", "make", "change"),
    [
        ("charge:{it.id}", Order, lambda it: setattr(it, "id", it.id + 1)),
        ("charge:{it[n]}:{it[at]}", lambda: {"n": 1, "at": 2}, lambda it: it.update(at=it["at"] + 1)),
        ("charge:{it[0]}", lambda: [1, 2, 3], lambda it: it.pop(0)),
    ],
)
def test_a_template_over_a_field_that_the_call_changes(key, make, change):
    assert passes(charging(change, key=key), make()) == ["charged"] * 3
    assert len(SENT) == 1
    (effect,) = batch_status("b").effects
    # A person may know only the later name.
    (alias,) = [document.value for _, document in aliases()]
    assert settle("b", alias["alias"], "done").key == effect.key


@pytest.mark.parametrize("repeat", ["error", "replay"])
def test_two_calls_of_one_pass_are_two_effects(repeat):
    """`while queue: send(queue)` sends each message, or says what is missing; it never replays."""
    send, queue = charging(list.pop, repeat=repeat), [1, 2, 3]
    with batch("b"):
        send(queue)
        with pytest.raises(EffectKeyReused, match=r"changed its arguments to these.*Effect\(key="):
            send(queue)
    with batch("b"):
        assert send(queue) == "charged", "in a later pass it is the first call"
        for argument in (queue, [1, 2, 3]):
            with pytest.raises(EffectKeyReused, match="key="):
                send(argument)
    assert len(SENT) == 1
    assert queue == [1, 2]


def test_an_alias_of_two_effects_is_neither():
    send, one, other = charging(list.clear), [1], [2]
    with batch("b"):
        send(one)
        send(other)
    with batch("b"), pytest.raises(EffectKeyReused, match="and"):
        send(one)
    with batch("b"):
        assert send([1]) == send([2]) == "charged"
    assert len(SENT) == 2


def aliases() -> list[Any]:
    return list(scan_all(open_ledger().store, ALIASES))


class Receipt:
    number = 0

    @property
    def next(self) -> int:
        self.number += 1
        return self.number


def test_a_key_that_is_another_each_time_is_refused():
    call = charging(lambda it: None, key="charge:{it.next}")
    assert passes(call, Receipt()) == [ConfigurationError] * 3
    assert SENT == []


def changed_by_verify() -> tuple[Any, list[Any]]:
    def verify(key: str, it: Any) -> Done:
        it.id += "!"
        return Done("verified")

    return {"effect": Effect(key="charge:{it.id}", verify=verify)}, ["verified"] * 3


def changed_by_a_check() -> tuple[Any, list[Any]]:
    def check(value: Any) -> bool:
        ACCOUNTS[-1].id += "!"
        return True

    return {"expect": check}, ["charged"] * 3


ACCOUNTS: list[Account] = []


@pytest.mark.parametrize("by", [changed_by_verify, changed_by_a_check])
def test_an_argument_that_other_code_of_the_call_changes(by):
    options, ends = by()
    ACCOUNTS.append(Account())

    @resilient(**{"effect": Effect(key="charge:{it.id}"), "retry": None, **options})
    def charge(it: Any) -> str:
        SENT.append(it)
        if "expect" not in options:
            raise ConnectionResetError("no answer")
        return "charged"

    assert passes(charge, ACCOUNTS[-1]) == ends
    assert len(SENT) == 1
    assert len(batch_status("b").effects) == 1


def keyed(name: str, change: Callable[..., Any] = lambda *_: None, key: str | None = None) -> Any:
    """An effect of its own task."""

    def call(*it: Any) -> str:
        change(*it)
        SENT.append(name)
        return name

    return resilient(effect=Effect(scope=name, key=key), retry=None)(call)


def mark(it: dict) -> None:
    it["status"] = "charged"
    it["lines"].append(2)


CHARGE, SHIP = keyed("charge", mark), keyed("ship")
COUNTED = keyed("count", lambda number, seen: seen.append(number))


@pytest.mark.parametrize(
    ("program", "sent"),
    [
        (lambda order: [CHARGE(order), SHIP(order)], 2),
        (lambda order: [CHARGE(order), SHIP({"of": (order,)})], 2),
        (lambda order: [CHARGE(order), SHIP(dict(order))], 2),
        (lambda order: [COUNTED(number, order["lines"]) for number in range(3)], 3),
    ],
)
@pytest.mark.parametrize("is_fresh", [True, False])
def test_an_argument_that_another_effect_changed_before(program, sent, is_fresh):
    """A replay changes no argument: the key of the next effect is another one than in the first pass."""
    doubts: list[str] = []
    orders = [{"id": 1, "lines": [1]} for _ in range(3)]
    for order in orders if is_fresh else orders[:1] * 3:
        with batch("b"):
            try:
                program(order)
            except InDoubt as doubt:
                doubts.append(str(doubt))
    assert len(SENT) == sent
    assert all("no replay does: write a key over what stays the same" in doubt for doubt in doubts)


def test_the_alias_is_written_before_the_outcome(monkeypatch):
    """A process that is killed between two writes leaves no effect that is done under one name only."""
    states: list[list[str]] = []
    step = Ledger._step

    def seen(self, place, event, seen=None):
        if aliases():
            states.append([one.state for one in batch_status("b").effects])
        return step(self, place, event, seen)

    monkeypatch.setattr(Ledger, "_step", seen)
    passes(charging(list.pop), [1, 2], number=1)
    assert states[0] == ["intended"]


def test_pruning_removes_aliases():
    passes(charging(list.pop), [1, 2])
    assert len(aliases()) == 1
    assert [one.batch_id for one in prune(timedelta(0))] == ["b"]
    assert aliases() == []


def test_a_call_that_outlives_its_attempt():
    go_on = threading.Event()

    @resilient(effect=Effect(scope="charge", max_wait=0.2), timeout=0.2, retry=None)
    def charge(it: dict) -> str:
        it["status"] = "charged"
        SENT.append(it)
        go_on.wait(60)
        it["ended"] = True
        return "charged"

    order = {"id": 1}
    assert passes(charge, order, number=2) == [AttemptTimeout, InDoubt]
    go_on.set()
    until(lambda: [one.state for one in batch_status("b").effects] == ["done"])
    assert passes(charge, order) == ["charged"] * 3
    assert len(SENT) == 1
    assert len(aliases()) == 2


def test_an_effect_of_another_version_is_in_doubt_where_its_key_differs():
    """0.2 gave both readings of a clock that was set back the key that the first one has."""
    when = datetime(2026, 10, 25, 2, 30)
    call = charging(lambda it: None)
    assert passes(call, when, number=1) == ["charged"]
    ledger = open_ledger()
    ((place, document),) = scan_all(ledger.store, PREFIX)
    old = {name: part for name, part in document.value["recipe"].items() if name != "digest"}
    assert ledger.store.swap(place, document.version, {**document.value, "recipe": old})
    assert passes(call, when, number=1) == ["charged"], "where the keys agree it is replayed"
    with batch("b"), pytest.raises(InDoubt, match="another version of prefect-resilience made its key"):
        call(when.replace(fold=1))
    assert len(SENT) == 1
