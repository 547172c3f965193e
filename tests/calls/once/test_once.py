"""`once` in plain code: one side effect in a scope, whatever asks for it again."""

from __future__ import annotations

import asyncio
import inspect
import logging
import subprocess
import sys
import threading
import typing
from collections import Counter
from functools import partial
from typing import Any

import pytest

from prefect_resilience import (
    ConfigurationError,
    Done,
    InDoubt,
    NotDone,
    NotRecorded,
    RepeatedEffect,
    Unknown,
    batch,
    batch_status,
    once,
    open_store,
    resilient,
    settle,
)
from prefect_resilience.base.text import utc_text
from prefect_resilience.durable.effects import opening
from prefect_resilience.stores.base import scan_all

SENT: Counter[Any] = Counter()
AGAIN = "Not repeated"


@pytest.fixture(autouse=True)
def store(monkeypatch, tmp_path):
    url = f"sqlite:///{tmp_path}/effects.db"
    monkeypatch.setenv("PREFECT_RESILIENCE_STORE_URL", url)
    SENT.clear()
    return url


def transfer(to: str, amount: float = 5, note: Any = None) -> str:
    """Transfer money.

    Args:
        to: the receiver
    """
    SENT[to, repr(amount), repr(note)] += 1
    return f"{amount} to {to}"


async def transfer_async(to: str, amount: float = 5, note: Any = None) -> str:
    """Transfer money."""
    return transfer(to, amount, note)


def call(tool: Any, *args: Any, **kwargs: Any) -> Any:
    answer = tool(*args, **kwargs)
    return asyncio.run(answer) if inspect.isawaitable(answer) else answer


@pytest.mark.parametrize("plain", [transfer, transfer_async])
def test_a_rerun_replays_and_a_repeat_is_told(plain):
    tool = once(plain, scope="turn-17")
    for _ in range(2):  # each block is a pass of its own
        with batch("a batch"):
            assert call(tool, "bob", 50) == "50 to bob"
            told = call(tool, "bob", 50)
    assert told.startswith(f"{AGAIN}: {plain.__name__} with these arguments was done at 20")
    assert 'result: "50 to bob". To do it again, say in its arguments what differs.' in told
    assert call(tool, "bob", 51) == "51 to bob"
    assert sum(SENT.values()) == 2
    assert [effect.state for effect in batch_status("turn-17").effects] == ["done", "done"]


def test_another_process_replays_and_imports_no_prefect(tmp_path):
    program = tmp_path / "agent.py"
    program.write_text(
        "import sys\nfrom prefect_resilience import once\n"
        "@once(scope=lambda: sys.argv[1])\n"
        "def pay(to: str) -> str:\n    print('paid')\n    return 'ok'\n"
        "print(pay('bob'))\nassert 'prefect' not in sys.modules\n"
    )
    outputs = [
        subprocess.run([sys.executable, program, turn], capture_output=True, text=True, check=True).stdout
        for turn in ("1", "1", "2")
    ]
    assert outputs == ["paid\nok\n", "ok\n", "paid\nok\n"]


@pytest.mark.parametrize("plain", [transfer, transfer_async])
def test_the_tool_looks_the_same(plain):
    tool = once(plain, scope="s")
    assert inspect.signature(tool) == inspect.signature(plain)
    assert typing.get_type_hints(tool) == typing.get_type_hints(plain)
    assert (tool.__name__, tool.__doc__) == (plain.__name__, plain.__doc__)
    assert inspect.iscoroutinefunction(tool) == inspect.iscoroutinefunction(plain)


@pytest.mark.parametrize(
    ("first", "second", "same"),
    [
        (("bob", 50), ("bob", 50.0), True),
        (("bob",), ("bob", 5), True),
        (("bob", 5, {"a": 1, "b": [2.0]}), ("bob", 5, {"b": [2], "a": 1}), True),
        (("bob", 50), ("bob", "50"), False),
        (("bob", 1.5), ("bob", 1), False),
        (("bob", 5, [1, 2]), ("bob", 5, [2, 1]), False),
        (("bob", 5, True), ("bob", 5, 1), False),
    ],
)
def test_arguments_are_compared_as_json(first, second, same):
    tool = once(transfer, scope="s")
    tool(*first)
    assert tool(*second).startswith(AGAIN) is same


def test_a_key_names_what_identifies_the_call():
    tool = once(transfer, scope="s", key="transfer:{to}")
    tool("bob", note="thanks")
    assert tool("bob", note="thank you").startswith(AGAIN)
    assert not tool("eve").startswith(AGAIN)


@pytest.mark.parametrize(
    ("scope", "other"),
    [("for {to}", "for eve"), (lambda to: f"for {to}", "for eve"), (lambda **given: given["to"], "eve")],
)
def test_a_scope_is_a_template_or_a_function_of_the_arguments(scope, other):
    tool = once(transfer, scope=scope)
    tool("bob")
    tool("eve")
    assert len(batch_status(other).effects) == 1


def closure(value: Any) -> Any:
    def pay(to: str) -> None:
        SENT[to, value] += 1

    return pay


def generator(to: str) -> Any:
    yield to


async def scope_of(to: str) -> str:
    return to


@pytest.mark.parametrize(
    ("tool", "options", "message"),
    [
        (transfer, {}, "needs the run or turn"),
        (transfer, {"scope": "s", "unknown": "ask"}, 'write "raise" or "tell"'),
        (transfer, {"scope": "{nobody}"}, "'nobody', which is not a parameter"),
        (transfer, {"scope": ""}, "needs a name"),
        (transfer, {"scope": 17}, "neither a text nor a plain function"),
        (transfer, {"scope": scope_of}, "neither a text nor a plain function"),
        (transfer, {"scope": "s", "key": "{amout}"}, "did you mean 'amount'"),
        (closure("bob"), {"scope": "s"}, "it uses 'value' of the enclosing function"),
        (generator, {"scope": "s"}, "a function with one result"),
        ("transfer", {"scope": "s"}, "below the framework's own decorator"),
        (Counter, {"scope": "s"}, "below the framework's own decorator"),
    ],
)
def test_what_cannot_work_is_refused_when_it_is_decorated(tool, options, message):
    with pytest.raises(ConfigurationError, match=message):
        once(tool, **options)


@pytest.mark.parametrize("scope", [None, " "])
def test_a_scope_function_must_return_a_scope(scope):
    with pytest.raises(ConfigurationError, match="was not called: its scope function tells no run or turn"):
        once(transfer, scope=lambda: scope)("bob")
    assert not SENT


def test_objects_and_counters_of_the_enclosing_function_need_no_key():
    calls = 0
    client = SENT

    @once(scope="s")
    def pay(to: str) -> int:
        nonlocal calls
        calls += 1
        client[to] += 1
        return calls

    assert pay("bob") == 1
    assert pay("bob") == f"{AGAIN}: pay with these arguments was done at {done_at()}, " + (
        "result: 1. To do it again, say in its arguments what differs."
    )
    assert once(closure("bob"), scope="s", key="pay:bob:{to}")("ann") is None
    assert once(partial(transfer, amount=7), scope="s")("bob") == "7 to bob"


def done_at() -> str:
    return utc_text(batch_status("s").effects[0].settled_at)


# -- unknown outcomes


def cut(to: str) -> str:
    """A transfer whose first answer is lost."""
    SENT[to] += 1
    if SENT[to] == 1:
        raise ConnectionResetError("cut")
    return f"to {to}"


def test_an_unknown_outcome_is_raised_until_a_person_decides():
    tool = once(cut, scope="s")
    for _ in range(2):
        with pytest.raises(InDoubt):
            tool("bob")
    (effect,) = batch_status("s").effects
    settle("s", effect.key, "not_done")
    assert tool("bob") == "to bob"
    assert SENT["bob"] == 2


def test_an_unknown_outcome_can_be_told_to_the_model():
    tool = once(cut, scope="s", unknown="tell")
    told = tool("bob")
    assert told.startswith("It is unknown whether this call of cut took place, and it was not made again")
    assert f"batches settle s {batch_status('s').effects[0].key}" in told
    assert tool("bob").startswith("It is unknown")
    assert SENT["bob"] == 1


@pytest.mark.parametrize(
    ("answer", "outcome", "calls"),
    [(Done("found"), "found", 1), (NotDone(), "to bob", 2), (Unknown(), InDoubt, 1)],
)
def test_verify_is_asked_first(answer, outcome, calls):
    tool = once(cut, scope="s", verify=lambda key, to: answer)
    with batch("first"):
        try:
            first = tool("bob")
        except (InDoubt, ConnectionResetError) as error:
            first = type(error)
    assert first == (ConnectionResetError if calls == 2 else outcome)
    with batch("second"):
        if outcome is InDoubt:
            with pytest.raises(InDoubt):
                tool("bob")
        else:
            assert tool("bob") == outcome
    assert SENT["bob"] == calls


# -- at once, inside each other, without a ledger


def test_of_two_parallel_calls_the_second_is_told_that_the_first_goes_on():
    begun, end = threading.Event(), threading.Event()

    @once(scope="s")
    def slow(to: str) -> str:
        begun.set()
        end.wait(10)
        return to

    thread = threading.Thread(target=slow, args=("bob",))
    thread.start()
    begun.wait(10)
    assert "is still in progress" in slow("bob")
    end.set()
    thread.join()


def test_a_repeat_inside_the_tool_is_not_told_of_the_tool():
    mail = resilient(effect="external", retry=None)(transfer)

    @once(scope="s", verify=lambda key: NotDone())
    def outer(to: str) -> str:
        return mail(to) + mail(to)

    with batch("b"), pytest.raises(RepeatedEffect):
        outer("bob")


@pytest.mark.parametrize(("lost", "most"), [("effects/s/", 200), ("", 200), ("", 0)])
def test_a_ledger_that_was_emptied_stops_the_process_that_filled_it(lost, most, store, monkeypatch):
    monkeypatch.setattr(opening, "MOST_COUNTED", most)
    tool = once(transfer, scope="s")
    tool("bob")
    opened = open_store(store)
    for place, document in list(scan_all(opened, lost)):
        opened.delete(place, document.version)
    for again in ("bob", "eve"):
        with pytest.raises(NotRecorded, match="lost records"):
            tool(again)
    assert sum(SENT.values()) == 1


def test_it_is_off_where_resilience_is_off(monkeypatch):
    monkeypatch.setenv("RESILIENCE_ENABLED", "false")
    for tool in (once(transfer, scope="s"), once(transfer_async, scope="s")):
        assert [call(tool, "bob"), call(tool, "bob")] == ["5 to bob", "5 to bob"]


def test_a_repeat_is_no_failure_in_the_log(caplog):
    tool = once(transfer, scope="s")
    with caplog.at_level(logging.INFO, "prefect_resilience"):
        tool("bob")
        tool("bob")
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]
