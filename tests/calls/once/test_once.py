"""`once` in plain code: one side effect in a scope, whatever asks for it again."""

from __future__ import annotations

import asyncio
import inspect
import logging
import subprocess
import sys
import typing
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from prefect_resilience import (
    ConfigurationError,
    InDoubt,
    NotDone,
    NotRecorded,
    RepeatedEffect,
    batch,
    batch_status,
    once,
    resilient,
    settle,
)
from prefect_resilience.durable.effects import opening

SENT: Counter[Any] = Counter()
AGAIN = "Not repeated"


@pytest.fixture(autouse=True)
def bank():
    SENT.clear()


def transfer(to: str, amount: float = 5, note: Any = None) -> str:
    """Transfer money."""
    SENT[to, repr(amount), repr(note)] += 1
    return f"{amount} to {to}"


async def transfer_async(to: str, amount: float = 5, note: Any = None) -> str:
    """Transfer money."""
    return transfer(to, amount, note)


def test_a_rerun_replays_and_a_repeat_is_told_and_no_failure(caplog):
    tool = once(transfer, scope="turn-17")
    for _ in range(2):  # each block is a pass of its own
        with batch("a batch"):
            assert tool("bob", 50) == "50 to bob"
            told = tool("bob", 50)
    assert told.startswith(f"{AGAIN}: transfer with these arguments was done at 20")
    assert 'result: "50 to bob". To do it again, say in its arguments what differs.' in told
    assert tool("bob", 51) == "51 to bob"
    assert sum(SENT.values()) == 2
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


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
    ("key", "first", "second", "same"),
    [
        (None, ("bob", 50), ("bob", 50.0), True),
        (None, ("bob", 5, {"a": 1, "b": [2.0]}), ("bob", 5, {"b": [2], "a": 1}), True),
        (None, ("bob", 50), ("bob", "50"), False),
        (None, ("bob", 1.5), ("bob", 1), False),
        (None, ("bob", 5, True), ("bob", 5, 1), False),
        ("transfer:{to}", ("bob", 5, "thanks"), ("bob", 5, "thank you"), True),
    ],
)
def test_arguments_are_compared_as_json_unless_a_key_names_what_counts(key, first, second, same):
    tool = once(transfer, scope="s", key=key)
    tool(*first)
    assert tool(*second).startswith(AGAIN) is same


def test_a_result_that_cannot_be_kept_is_told_as_such():
    tool = once(lambda to: SENT.update([to]) or object(), scope="s")
    with batch("first"):
        assert not isinstance(tool("bob"), str)
        assert "result: not kept" in tool("bob")
    with batch("second"):
        assert "result: not kept" in tool("bob")
    assert SENT == {"bob": 1}


@pytest.mark.parametrize("scope", ["for {to}", lambda to: f"for {to}"])
def test_a_scope_is_a_template_or_a_function_of_the_arguments(scope):
    tool = once(transfer, scope=scope)
    tool("bob")
    tool("eve")
    assert len(batch_status("for eve").effects) == 1


def closure(value: Any) -> Any:
    def pay(to: str) -> None:
        SENT[to, value] += 1

    return pay


@pytest.mark.parametrize(
    ("tool", "options", "message"),
    [
        (transfer, {}, "needs the run or turn"),
        (transfer, {"scope": "s", "unknown": "ask"}, 'write "raise" or "tell"'),
        (transfer, {"scope": "{amout}"}, "did you mean 'amount'"),
        (transfer, {"scope": transfer_async}, "neither a text nor a plain function"),
        (transfer, {"scope": "s", "key": "{amout}"}, "did you mean 'amount'"),
        (closure("bob"), {"scope": "s"}, "it uses 'value' of the enclosing function"),
        (lambda: (yield), {"scope": "s"}, "a function with one result"),
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

    assert [pay("bob"), pay("ann")] == [1, 2]
    assert once(closure("bob"), scope="s", key="pay:bob:{to}")("ann") is None


# -- unknown outcomes


def cut(to: str) -> str:
    """A transfer whose first answer is lost."""
    SENT[to] += 1
    if SENT[to] == 1:
        raise ConnectionResetError("cut")
    return f"to {to}"


def test_an_unknown_outcome_is_raised_or_told_until_a_person_decides():
    tool = once(cut, scope="s")
    for _ in range(2):
        with pytest.raises(InDoubt):
            tool("bob")
    (effect,) = batch_status("s").effects
    told = once(cut, scope="s", unknown="tell")("bob")
    assert told.startswith("It is unknown whether this call of cut took place, and it was not made again")
    assert f"batches settle s {effect.key}" in told
    settle("s", effect.key, "not_done")
    assert tool("bob") == "to bob"
    assert SENT["bob"] == 2


# -- at once, inside each other, without a ledger


def test_a_call_of_one_in_progress_is_told_that_it_goes_on():
    @once(scope="s")
    def slow(to: str) -> str:
        with ThreadPoolExecutor() as pool:
            return pool.submit(slow, to).result()

    assert "is still in progress" in slow("bob")


def test_a_repeat_inside_the_tool_is_not_told_of_the_tool():
    mail = resilient(effect="external", retry=None)(transfer)

    @once(scope="s", verify=lambda key: NotDone())
    def outer(to: str) -> str:
        return mail(to) + mail(to)

    with batch("b"), pytest.raises(RepeatedEffect):
        outer("bob")


@pytest.mark.parametrize(("lost", "most"), [("effects/s/", 200), ("", 0)])
def test_a_ledger_that_was_emptied_stops_the_process_that_filled_it(lost, most, empty, monkeypatch):
    monkeypatch.setattr(opening, "MOST_COUNTED", most)
    tool = once(transfer, scope="s")
    tool("bob")
    empty(lost)
    for again in ("bob", "eve"):
        with pytest.raises(NotRecorded, match="lost records"):
            tool(again)
    assert sum(SENT.values()) == 1


def test_it_is_off_where_resilience_is_off(monkeypatch):
    monkeypatch.setenv("RESILIENCE_ENABLED", "false")
    now, later = once(transfer, scope="s"), once(transfer_async, scope="s")
    for _ in range(2):
        assert [now("bob"), asyncio.run(later("bob"))] == ["5 to bob", "5 to bob"]
