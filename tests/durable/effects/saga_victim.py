"""A rollback in a process of its own, which is killed between two lines that it runs."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, field
from multiprocessing.connection import Connection
from typing import Any

from prefect.settings import (
    PREFECT_API_URL,
    PREFECT_FLOWS_HEARTBEAT_FREQUENCY,
    PREFECT_LOGGING_LEVEL,
    temporary_settings,
)

from prefect_resilience.durable.effects.ledger import open_ledger, place_of
from prefect_resilience.durable.effects.model import Succeeded
from prefect_resilience.durable.sagas.compensations import record_compensation
from prefect_resilience.effects import Effect, RollbackReport, batch_status, rollback
from tests.durable.effects import saga_parts
from tests.durable.effects.receiver import Receiver
from tests.durable.effects.victim import answer_of, context, kill_before_line

context.set_forkserver_preload(
    [
        __name__,
        "prefect_resilience.stores.sqlite",
        "prefect_resilience.durable.letters.codec",
        "prefect_resilience.durable.sagas.edge.saga",
        "prefect.utilities.importtools",
    ]
)


@dataclass(frozen=True)
class Saga:
    """A batch of done effects, each with a compensation: every `asked`-th one is a task that can be asked."""

    receiver: str
    store: str
    api: str
    batch_id: str
    count: int
    asked: int = 2

    def can_be_asked(self, order: int) -> bool:
        return self.asked > 0 and order % self.asked == 0

    def key(self, order: int) -> str:
        return f"compensate:{self.batch_id}.{order}"


def done(saga: Saga) -> None:
    """Write the batch into the ledger, as its flow would have."""
    ledger = open_ledger(saga.store)
    for order in range(saga.count):
        undo = saga_parts.undo_send_asked if saga.can_be_asked(order) else saga_parts.undo_send
        key = f"{saga.batch_id}.{order}"
        effect = Effect(key="{batch_id}.{order}", compensate=undo)
        about = {"key": key, "batch": saga.batch_id, **record_compensation(effect, {"order": order})}
        place = place_of(saga.batch_id, key)
        ledger.intend(place, key, "external", about)
        ledger.report(place, Succeeded(key, {"as": "json", "value": f"m-{key}"}, f"id-{order}"))


def run(saga: Saga, kill_at: int, answers: Connection, both: Any) -> None:
    """The child's life, with `both` at once. Sends back how many lines it ran, and the report."""
    os.environ[saga_parts.RECEIVER] = saga.receiver
    os.environ["PREFECT_RESILIENCE_STORE_URL"] = saga.store
    lines = kill_before_line(kill_at)
    api = {PREFECT_API_URL: saga.api, PREFECT_FLOWS_HEARTBEAT_FREQUENCY: None}
    with temporary_settings({**api, PREFECT_LOGGING_LEVEL: "CRITICAL"}):
        if both is not None:
            both.wait(60)
        report = rollback(saga.batch_id)
    sys.settrace(None)
    answers.send((lines[0], report))


def start(saga: Saga, kill_at: int = 0, both: Any = None) -> Callable[[], tuple[int, RollbackReport] | None]:
    """Start a victim; what is returned waits for its answer, or for its death by SIGKILL: None."""
    ours, theirs = context.Pipe(duplex=False)
    process = context.Process(target=run, args=(saga, kill_at, theirs, both), daemon=True)
    process.start()
    theirs.close()

    return lambda: answer_of(process, ours)


@dataclass
class Toll:
    """What came of many kills."""

    kills: int = 0
    undone: int = 0
    """Compensations that the receiver took exactly once."""
    doubts: int = 0
    """Those that were left for a person."""
    batches: int = 0
    mistakes: list[str] = field(default_factory=list)


def kill_often(
    receiver: Receiver, store: str, api: str, *, kills: int, count: int = 4, asked: int = 2, seed: int = 0
) -> Toll:
    """Kill rollbacks until that many have been killed, each begun again until it ends."""
    chance = random.Random(seed)
    toll = Toll()
    lines = 1_000 * count
    while toll.kills < kills:
        saga = Saga(receiver.url, store, api, f"saga{seed}.{toll.batches}", count, asked)
        done(saga)
        toll.batches += 1
        while (said := start(saga, chance.randint(1, lines))()) is None:
            toll.kills += 1
        judge(receiver, saga, said[1], toll)
    return toll


def judge(receiver: Receiver, saga: Saga, report: RollbackReport, toll: Toll) -> None:
    """What the receiver got, beside what the last rollback said, and what the ledger says."""
    undone = {one.key for one in report.compensated + report.already}
    doubts = {one.key for one in report.in_doubt}
    states = {one.key: one.state for one in batch_status(saga.batch_id, store=saga.store).effects}
    for order in range(saga.count):
        key, taken = f"{saga.batch_id}.{order}", receiver.taken[saga.key(order)]
        toll.undone += taken == 1
        toll.doubts += key in doubts
        wrong = taken > 1 or (key in undone) == (key in doubts) or (key in undone and taken != 1)
        wrong |= key in doubts and saga.can_be_asked(order)
        wrong |= states[key] != ("compensated" if key in undone else "compensating")
        if wrong:
            toll.mistakes.append(f"{key}: taken {taken} times, {states[key]}: {report}")
    came = [int(key.rpartition(".")[2]) for key in receiver.calls if f"{saga.batch_id}." in key]
    if came != sorted(came, reverse=True):
        toll.mistakes.append(f"{saga.batch_id} was undone in the order {came}")
    if report.failed:
        toll.mistakes.append(f"{saga.batch_id}: {report.failed}")
