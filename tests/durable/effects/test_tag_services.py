"""A process that takes part in many batches does not keep a thread for each."""

from __future__ import annotations

import gc
from typing import Any

import pytest
from prefect import flow

from prefect_resilience import batch, resilient_task
from prefect_resilience.durable.batches.edge import tag_services
from tests.prefect_runs import until

pytestmark = pytest.mark.api


@resilient_task
def step(number: int) -> int:
    return number


@flow
def all_batches(count: int) -> list[int]:
    done: list[int] = []
    for number in range(count):
        with batch(f"many-{number}"):
            done.append(step(number))
    return done


def ours() -> list[Any]:
    """The services of the batches here, also of those that Prefect has let go of."""
    kind = tag_services.services.ConcurrencySlotAcquisitionWithLeaseService
    every = [one for one in gc.get_objects() if isinstance(one, kind)]
    return [one for one in every if "many-" in str(one.concurrency_limit_names)]


def running() -> int:
    return sum(not one._done_event.is_set() for one in ours())


def holding_a_client() -> int:
    return sum("_client" in vars(one) for one in ours())


def test_the_services_of_old_batches_are_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tag_services, "KEPT", 2)
    monkeypatch.setattr(tag_services, "GRACE_SECONDS", 0.0)
    assert all_batches(8) == list(range(8))
    assert until(lambda: running() <= 2)
    # and one that is gone comes again
    assert all_batches(1) == [0]
    assert until(lambda: all_batches(1) and holding_a_client() <= 4)
    # nor is anything kept for when the process ends: nothing holds on to the services themselves
    assert until(lambda: all_batches(1) and gc.collect() >= 0 and len(ours()) <= 4)


def test_another_prefect_that_keeps_them_elsewhere_is_let_be(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tag_services, "_let_go", lambda *_: 1 / 0)
    assert all_batches(2) == [0, 1]
    monkeypatch.delattr(tag_services.services, "ConcurrencySlotAcquisitionWithLeaseService")
    tag_services.end_old_services("any")
