"""Rollbacks of real runs, sync and async: order, savepoints, what compensations get, and what goes wrong."""

from __future__ import annotations

import asyncio
import functools
import threading
from typing import Any

import pytest
from prefect import flow

from prefect_resilience import ConfigurationError, InDoubt, NotSent, StoreUnavailable, resilient_task
from prefect_resilience.durable.effects.ledger import open_ledger
from prefect_resilience.durable.sagas.compensations import record_compensation
from prefect_resilience.durable.sagas.undo import SagaLog
from prefect_resilience.effects import (
    Done,
    Effect,
    arollback,
    batch,
    batch_status,
    recover,
    rollback,
    savepoint,
    settle,
)
from prefect_resilience.errors.exceptions import EffectBusy
from tests.durable.effects import saga_parts as parts

pytestmark = [pytest.mark.api, pytest.mark.usefixtures("saga")]


def keys(found) -> list[str]:
    return [one.key for one in found]


def undone() -> list[Any]:
    return [call[1] for call in parts.calls if call[0] == "undo"]


def sending(compensate: Any, **more: Any) -> Any:
    @resilient_task(retry=None, effect=Effect(key="order:{order}", compensate=compensate, **more))
    def send(order: int) -> Done:
        parts.calls.append(("send", order))
        return Done(parts.post(), f"id-{order}")

    return send


def in_batch(batch_id: str, task: Any, *orders: int) -> list[Any]:
    @flow
    def sends() -> list[Any]:
        with batch(batch_id):
            return [task(order) for order in orders]

    return sends()


# -- order, savepoints, generations


@pytest.mark.smoke
@pytest.mark.requirement("002.33")
def test_a_failing_flow_undoes_what_it_did_in_reverse_order(receiver, shared):
    reports = []

    @flow
    def trip() -> None:
        try:
            for order in (1, 2, 3):
                parts.send(order)
            raise ValueError("no hotel")
        except ValueError:
            reports.append(rollback())
            raise

    with pytest.raises(ValueError, match="no hotel"):
        trip()
    assert keys(reports[0].compensated) == ["order:3", "order:2", "order:1"]
    assert reports[0].complete
    assert str(reports[0]).endswith("rolled back: compensated: 'order:3', 'order:2', 'order:1'")
    assert parts.calls[3:] == [("undo", n, f"m-order:{n}", f"id-{n}") for n in (3, 2, 1)]
    assert all(receiver.taken[f"compensate:order:{n}"] == 1 for n in (1, 2, 3))
    assert set(parts.states(reports[0].batch_id).values()) == {"compensated"}


@pytest.mark.smoke
@pytest.mark.requirement("004.23")
def test_down_to_a_savepoint_and_again_after_it(shared):
    @flow
    def run() -> list[Any]:
        with batch("b"):
            parts.send(1)
            at = savepoint("one")
            parts.send(2)
            assert savepoint("one") == at
            first = rollback(to="one")
            parts.send(2)
            return [first, rollback(to="one"), rollback()]

    first, second, third = run()
    assert keys(first.compensated) == keys(second.compensated) == ["order:2"]
    assert [one.generation for one in (*first.compensated, *second.compensated)] == [1, 2]
    assert keys(third.compensated) == ["order:1"]
    assert keys(third.already) == ["order:2"]
    assert [call[:2] for call in parts.calls] == [
        ("send", 1),
        ("send", 2),
        ("undo", 2),
        ("send", 2),
        ("undo", 2),
        ("undo", 1),
    ]
    with pytest.raises(
        ConfigurationError, match="no savepoint 'one'; it has no savepoints, and no other batch"
    ):
        rollback("b", "one")


def test_a_retried_flow_sends_anew_what_was_undone_though_its_results_are_kept(receiver, shared):
    seen = []

    @flow(retries=1, persist_result=True)
    def trip() -> str:
        try:
            seen.append(parts.send(1))
            if len(seen) == 1:
                raise ValueError("not yet")
        except ValueError:
            rollback()
            raise
        return seen[-1]

    assert trip() == "m-order:1~2"
    assert seen == ["m-order:1", "m-order:1~2"]
    assert receiver.taken == {"order:1": 1, "compensate:order:1": 1, "order:1~2": 1}


@pytest.mark.requirement("004.23")
def test_down_to_the_end_of_another_batch(shared):
    @flow
    def sends() -> None:
        for batch_id, order in (("long", 1), ("earlier", 2), ("long", 3)):
            with batch(batch_id):
                parts.send(order)

    sends()
    planned = recover("long", "compensate", to="earlier", dry_run=True)
    report = rollback("long", "earlier")
    assert list(planned.undone) == keys(report.compensated) == ["order:3"]
    assert report.to == "earlier"
    assert parts.states("long") == {"order:1": "done", "order:3": "compensated"}
    assert parts.states("earlier") == {"order:2": "done"}


# -- what compensations are, and what they get


@pytest.mark.parametrize(
    ("undo", "asynchronous"),
    [
        (parts.undo_send_async, False),
        (parts.undo_send_async, True),
        (parts.undo_send_task, True),
        (parts.undo_send_asked, False),
        (parts.undo_send_resilient, True),
    ],
)
def test_every_kind_of_compensation_sync_and_async(shared, undo, asynchronous):
    in_batch("b", sending(undo), 1, 2)

    @flow
    def undoes() -> Any:
        return rollback("b")

    @flow
    async def undoes_async() -> Any:
        return await arollback("b")

    report = asyncio.run(undoes_async()) if asynchronous else undoes()
    assert keys(report.compensated) == ["order:2", "order:1"], report
    assert undone() == [2, 1]
    own = [one for one in batch_status("b").effects if one.compensates]
    assert sorted(one.key for one in own) == ["compensate:order:1", "compensate:order:2"]
    assert {one.state for one in own} == {"done"}


def test_parameters_and_results_come_back_equal(shared):
    receipt = parts.Receipt(order=1, total=b"\x00\xff")

    @resilient_task(effect=Effect(key="paid", compensate=parts.undo_receipt))
    def pay() -> parts.Receipt:
        return receipt

    @resilient_task(effect=Effect(key="kept", compensate=parts.undo_with))
    def keep(receipt: parts.Receipt, when: set[int], password: str) -> None:
        return None

    @flow
    def run() -> Any:
        pay()
        keep(receipt, {1, 2}, "hunter2hunter2")
        return rollback()

    report = run()
    assert keys(report.compensated) == ["kept", "paid"], report
    assert parts.calls == [("undo", receipt, {"when": {1, 2}}), ("undo", receipt)]


def test_what_cannot_be_recorded_is_refused_before_anything_is_sent(shared):
    @resilient_task(retry=None, effect=Effect(key="order", compensate=parts.undo_by_token))
    def send(token: str) -> None:
        parts.calls.append(("send", token))

    @flow
    def run() -> None:
        send("s3cr3t-s3cr3t")

    with pytest.raises(ConfigurationError, match="nothing was sent: compensate=undo_by_token needs 'token'"):
        run()
    assert parts.calls == []


# -- compensations that fail


def _is_of(key: str, event: dict[str, Any]) -> bool:
    return event["payload"]["key"] == key


def test_a_compensation_that_fails_goes_to_a_person_and_the_others_are_made(receiver, shared, seen):
    parts.troubles["2"] = [RuntimeError("the desk is closed")]
    parts.troubles["3"] = [NotSent()]

    @flow
    def run() -> Any:
        with batch("failing"):
            for order in (1, 2, 3):
                parts.send(order)
            return rollback()

    report = run()
    assert keys(report.compensated) == ["order:1"]
    assert keys(report.failed) == ["order:3", "order:2"]
    assert not report.complete
    assert "the effect is not compensated" in report.failed[0].why
    assert (
        report.failed[1].why
        == "RuntimeError: the desk is closed; whether the effect is compensated is unknown"
    )
    assert parts.states("failing") == {"order:1": "compensated", "order:2": "compensating", "order:3": "done"}
    for key in ("order:2", "order:3"):
        is_its = functools.partial(_is_of, key)
        assert seen.events("prefect-resilience.effect.compensation-failed", is_its)
    rolled = seen.events("prefect-resilience.batch.rolled-back", lambda one: one["payload"]["failed"] == 2)
    assert rolled[0]["payload"]["compensated"] == 1
    # what certainly did nothing is tried again; what is open waits, and nothing goes past it
    again = rollback("failing")
    assert (keys(again.compensated), keys(again.in_doubt)) == (["order:3"], ["order:2"])
    with pytest.raises(InDoubt, match="its compensation failed with"):
        in_batch("failing", parts.send, 2)
    settle("failing", "compensate:order:2", "not_done")
    assert keys(rollback("failing").compensated) == ["order:2"]
    assert receiver.taken["compensate:order:2"] == 1


def test_a_compensation_that_is_gone(shared, monkeypatch):
    in_batch("b", parts.send, 1)
    kept = parts.undo_send
    monkeypatch.delattr(parts, "undo_send")
    report = rollback("b")
    assert keys(report.failed) == ["order:1"]
    assert "undo_send" in report.failed[0].why
    monkeypatch.setattr(parts, "undo_send", kept, raising=False)
    assert keys(rollback("b").compensated) == ["order:1"]


# -- effects in doubt, and effects under way


def test_an_effect_in_doubt_is_left_to_a_person(receiver, shared):
    @resilient_task(retry=None, effect=Effect(key="blind", compensate=parts.undo_send))
    def blind(order: int) -> str:
        return parts.post()

    @flow
    def run() -> Any:
        receiver.says("cut")
        blind(1, return_state=True)
        return rollback()

    report = run()
    assert keys(report.in_doubt) == ["blind"]
    assert "there is no verify" in report.in_doubt[0].why
    assert parts.states(report.batch_id) == {"blind": "unknown"}


class Slow:
    """A task whose call goes on until it is let go."""

    def __init__(self) -> None:
        self.entered, self.go_on = threading.Event(), threading.Event()

        @resilient_task(effect=Effect(key="slow", compensate=parts.undo_with))
        def slow(receipt: str) -> None:
            self.entered.set()
            assert self.go_on.wait(30)

        self.task = slow

    def begin(self) -> Any:
        future = self.task.submit("r")
        assert self.entered.wait(30)
        return future


def test_what_is_going_on_is_waited_for(shared):
    slow = Slow()

    @flow
    def run() -> list[Any]:
        future = slow.begin()
        early = rollback(max_wait=0)
        threading.Timer(0.2, slow.go_on.set).start()
        late = rollback()
        future.wait()
        return [early, late]

    early, late = run()
    assert keys(early.in_doubt) == ["slow"]
    assert early.in_doubt[0].why == "it is still in progress"
    assert keys(late.compensated) == ["slow"]


def test_a_second_rollback_waits_for_the_first(shared):
    log = SagaLog(open_ledger(), "b")
    log.begin("theirs", None)
    with pytest.raises(EffectBusy):
        rollback("b", max_wait=0)
    with pytest.raises(EffectBusy):
        savepoint("one", batch_id="b")
    over = threading.Event()
    threading.Timer(0.3, lambda: (over.set(), log.give_up("theirs"))).start()
    assert rollback("b", max_wait=60).complete
    assert over.is_set()
    log.begin("cut-off", None)
    log.give_up("cut-off")
    with pytest.raises(InDoubt, match="rollback\\(\\) finishes it"):
        savepoint("one", batch_id="b")
    assert rollback("b").complete
    assert savepoint("one", batch_id="b") > 0


# -- mistakes


def test_mistakes(shared, monkeypatch):
    with pytest.raises(ConfigurationError, match="runs in no flow run and no batch"):
        rollback()
    with pytest.raises(ConfigurationError, match="a savepoint needs a name"):
        savepoint(" ", batch_id="b")
    savepoint("booked", batch_id="b")
    with pytest.raises(ConfigurationError, match="no savepoint 'boked'; did you mean 'booked'"):
        rollback("b", "boked")
    monkeypatch.setenv("PREFECT_RESILIENCE_STORE_URL", "redis://127.0.0.1:1/0")
    with pytest.raises(StoreUnavailable):
        rollback("b")


def test_an_effect_does_not_roll_back_its_own_batch(shared):
    @resilient_task(retry=None, effect=Effect(key="inner"))
    def inner() -> None:
        rollback()

    @flow
    def run() -> None:
        inner()

    with pytest.raises(InDoubt, match="'inner' rolls back its own batch"):
        run()


def local(order: int) -> None:
    return None


@pytest.mark.parametrize(
    "undo",
    [lambda order: None, parts.Api().undo_here, functools.partial(local, 1)],
    ids=["a lambda", "a method", "a partial"],
)
def test_a_compensation_that_no_import_finds_is_refused_before_anything_is_sent(undo):
    with pytest.raises(ConfigurationError, match="cannot be found by another process"):
        record_compensation(Effect(key="a", compensate=undo), {"order": 1})


def by_position(order: int, /) -> None:
    return None


def test_a_parameter_that_has_no_name_is_refused_at_decoration():
    with pytest.raises(ConfigurationError, match="must take 'order' by name"):
        sending(by_position)
