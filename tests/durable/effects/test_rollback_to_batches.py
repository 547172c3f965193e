"""Rollbacks down to the end of another batch."""

from __future__ import annotations

import threading
from typing import Any

import pytest
from prefect import flow

from prefect_resilience import ConfigurationError, resilient_task
from prefect_resilience.effects import Effect, batch, batch_status, recover, rollback
from tests.durable.effects import saga_parts as parts

pytestmark = pytest.mark.api


@pytest.fixture(autouse=True)
def clean(receiver, monkeypatch):
    monkeypatch.setenv(parts.RECEIVER, receiver.url)
    parts.calls.clear()


@flow
def sent(*orders: tuple[str, int]) -> None:
    for batch_id, order in orders:
        with batch(batch_id):
            parts.send(order)


def states(batch_id: str) -> dict[str, str]:
    return {one.key: one.state for one in batch_status(batch_id).effects if one.compensates is None}


@pytest.mark.requirement("004.23")
def test_what_was_done_after_it_is_undone(shared):
    sent(("long", 1), ("earlier", 2), ("long", 3))
    planned = recover("long", "compensate", to="earlier", dry_run=True)
    report = rollback("long", "earlier")
    assert list(planned.undone) == [one.key for one in report.compensated] == ["order:3"]
    assert report.to == "earlier"
    assert states("long") == {"order:1": "done", "order:3": "compensated"}
    assert states("earlier") == {"order:2": "done"}


def test_a_batch_that_goes_on_has_no_end(shared):
    entered, go_on = threading.Event(), threading.Event()

    @resilient_task(effect=Effect(key="slow", compensate=parts.undo_with))
    def slow(receipt: str) -> None:
        entered.set()
        assert go_on.wait(30)

    @flow
    def run() -> Any:
        with batch("going-on"):
            future = slow.submit("r")
        assert entered.wait(30)
        try:
            rollback("long", "going-on")
        finally:
            go_on.set()
            future.wait()

    sent(("long", 1))
    with pytest.raises(
        ConfigurationError, match="'going-on' is still in progress: it has no end to roll back to"
    ):
        run()
    assert states("long") == {"order:1": "done"}
