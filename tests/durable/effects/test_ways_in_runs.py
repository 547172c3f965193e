"""Some of the ways to send, through a real task in a real flow: `test_ways.py` has all, without Prefect."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import pytest
from prefect import flow
from prefect.client.orchestration import get_client
from prefect.client.schemas.objects import State
from prefect.exceptions import ObjectNotFound

from prefect_resilience import batch, resilient_task
from prefect_resilience.base.edge.settings import current_settings
from tests.durable.effects.ways.catalogue import ways
from tests.durable.effects.ways.places import Places
from tests.durable.effects.ways.running import Pass, Trial
from tests.durable.effects.ways.way import Combination
from tests.prefect_runs import until

pytestmark = pytest.mark.api

CHOSEN: list[tuple[str, bool, bool]] = [  # the way; is there a verify; is there proof
    ("httpx, one request, connection refused", False, False),
    ("httpx, one request, connection refused", False, True),
    ("httpx async, one request, 429", False, True),
    ("httpx, one request, cut after it was taken", True, False),
    ("httpx async, one request, 503, not taken", True, True),
    ("httpx, redirect, 303 to a closed port", False, True),
    ("httpx async, POST, then POST, fine, then connection refused", False, False),
    ("httpx, send, then a circuit rejects, fine", True, False),
    ("httpx, a circuit rejects before, open, then fine", False, False),
    ("httpx, long work, then send, overdue in a thread, sent later", True, False),
    ("requests in asyncio.to_thread, long work, then send, overdue, sent later", True, False),
    ("requests in asyncio.to_thread, one request, 429", True, False),
    ("requests, one request, 404", False, True),
    ("smtplib, one request, 550 to the recipient", False, True),
]
WAYS = {way.name: way for way in ways()}


class TrialInFlow(Trial):
    """The same, by a decorated function that a flow calls; a later pass is another run of the flow."""

    def passed(self, number: int) -> Pass:
        open_gate = self.gate.open

        def again(*_: Any) -> bool:
            open_gate()
            return True

        task = resilient_task(**self.options, retry_condition_fn=again)(self.function)
        held: list[State[Any]] = []
        with self.recorded() as came:
            if self.make.isasync:

                @flow
                async def send_async() -> None:
                    with batch(self.batch):
                        held.append(await task(return_state=True))

                asyncio.run(send_async())
            else:

                @flow
                def send() -> None:
                    with batch(self.batch):
                        held.append(task(return_state=True))

                send()
            came.value = held[0].result()
        came.replays, came.attempts = int(held[0].name == "Replayed"), run_count(held[0])
        return came


def run_count(state: State[Any]) -> int:
    """As the API has it once it knows of the end."""
    task_run_id = state.state_details.task_run_id
    assert task_run_id is not None

    def ended() -> Any:
        with suppress(ObjectNotFound):
            run = client.read_task_run(task_run_id)
            if run.state is not None and run.state.is_final():
                return run
        return None

    with get_client(sync_client=True) as client:
        return until(ended).run_count


@pytest.fixture
def places() -> Iterator[Places]:
    made = Places(lambda: "")
    yield made
    made.close()


@pytest.mark.parametrize(
    ("name", "verify", "proof"),
    CHOSEN,
    ids=lambda value: value if isinstance(value, str) else str(value).lower(),
)
def test_it_is_taken_once_or_the_caller_hears_of_it(
    name: str, verify: bool, proof: bool, places: Places
) -> None:
    trial = TrialInFlow(WAYS[name], Combination(verify, proof), places, current_settings().store_url)
    outcome = trial.tried()
    assert not outcome.problems, f"{outcome.problems} {outcome.error}"
