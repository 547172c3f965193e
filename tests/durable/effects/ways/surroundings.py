"""A place for guarded calls without Prefect: what `attempt.make_attempt` asks of its surroundings."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from uuid import uuid4

from prefect_resilience.base.drive import Steps, adrive, drive
from prefect_resilience.calls.attempt import make_attempt
from prefect_resilience.calls.model import Guard, RunRecord
from prefect_resilience.durable.effects.current import CallStart, Replayed
from prefect_resilience.durable.effects.ledger import Ledger, open_ledger
from prefect_resilience.durable.effects.model import Pass
from prefect_resilience.telemetry.payloads import CallReport


@dataclass(eq=False)
class Here:
    """One run of one task in a batch. A later pass over the batch is another `Here`."""

    batch: str
    store: str
    parameters: Mapping[str, Any] = field(default_factory=dict[str, Any])
    begun: int = 1
    """Which pass over the batch this is."""
    run: str = field(default_factory=lambda: uuid4().hex)
    on_look: Callable[[], None] = lambda: None
    """Called when an attempt begins to look at the ledger."""
    looks: int = 0
    """How many attempts asked for the ledger."""
    replays: int = 0
    doubts: int = 0
    outer_deadline = None
    parking = None
    may_go_on: bool = False
    guard: Guard = field(init=False)
    records: dict[str, RunRecord] = field(default_factory=dict[str, RunRecord])

    @property
    def identity(self) -> dict[str, Any]:
        return {"node_id": "send", "task_run_id": self.run, "flow_run_id": None}

    # -- the record of this run

    def record_so_far(self) -> RunRecord | None:
        return self.records.get(self.run)

    def record(self, started: float) -> RunRecord:
        return self.records.setdefault(self.run, RunRecord(started, CallStart(self.run)))

    def close_record(self) -> None:
        self.records.pop(self.run, None)

    def retry_refusal(self, error: Exception) -> Steps[str | None]:
        yield from ()
        return None

    # -- the ledger

    def start(self) -> CallStart:
        return self.record(time.monotonic()).start or CallStart.of(0.0)

    def batch_id(self) -> str:
        return self.batch

    def ledger(self) -> Ledger:
        self.looks += 1
        self.on_look()
        return open_ledger(self.store)

    def passed(self) -> Pass:
        return (("flow", self.begun), (self.run, 1))

    def marks(self) -> None:
        """Nothing is known of the batch but what the ledger says."""

    def flow(self) -> tuple[str | None, str | None]:
        return None, None

    def keep(self, reference: str, value: Any) -> str | None:
        return "there is no storage"

    def kept(self, reference: str) -> Any:
        raise LookupError(reference)

    # -- what is told

    def report(self, report: CallReport) -> None:
        events = [happening for happening, *_ in report.events]
        self.replays += "effect.replayed" in events
        self.doubts += "effect.in-doubt" in events
        assert report.kind != ("unrecorded",), f"the store of this test is there: {report.line}"

    def note_external_begun(self, store_url: str) -> None: ...

    def went_well(self) -> None: ...

    def leave_request(self, error: BaseException) -> None: ...

    def remember(self, value: Any) -> None: ...

    def recall(self, max_age: float | None) -> Any:
        raise LookupError("nothing is kept")

    def carry_into_child(self) -> None:
        return None

    def part(self, changes: Mapping[str, Any], label: str, without_tags: set[str]) -> Callable[[], Any]:
        raise AssertionError("nothing is split")

    def tags_with_limit(self) -> set[str]:
        return set()

    # -- the run

    def is_tried_again(self, error: Exception) -> bool:
        record = self.record_so_far()
        return record is not None and record.error is error and bool(record.verdict and record.verdict.retry)


def run(
    guard: Guard, here: Here, between: Callable[[], None] = lambda: None, arguments: tuple[Any, ...] = ()
) -> Any:
    """Call until the verdict is final, without waiting; `between` is called between two attempts."""
    here.guard = guard
    while True:
        try:
            return _handed_on(drive(make_attempt(guard, here, arguments, {})))
        except Exception as error:
            if not here.is_tried_again(error):
                raise
        between()


async def arun(
    guard: Guard, here: Here, between: Callable[[], None] = lambda: None, arguments: tuple[Any, ...] = ()
) -> Any:
    """The same on an event loop."""
    here.guard = guard
    while True:
        try:
            return _handed_on(await adrive(make_attempt(guard, here, arguments, {})))
        except Exception as error:
            if not here.is_tried_again(error):
                raise
        between()


def run_either(
    guard: Guard,
    here: Here,
    between: Callable[[], None] = lambda: None,
    arguments: tuple[Any, ...] = (),
) -> Any:
    """The value of a run, by the driver that the function needs."""
    if not guard.isasync:
        return run(guard, here, between, arguments)
    return asyncio.run(arun(guard, here, between, arguments))


def _handed_on(value: Any) -> Any:
    """What the caller gets."""
    return value.value if isinstance(value, Replayed) else value
