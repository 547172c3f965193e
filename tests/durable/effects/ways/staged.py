"""Ways that are not one call after the other: a second one asks meanwhile, or the function is refused."""

from __future__ import annotations

from collections.abc import Callable, Generator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import contextmanager
from uuid import uuid4

from prefect.cache_policies import INPUTS

from prefect_resilience import resilient_task
from prefect_resilience.durable.effects import owner
from prefect_resilience.durable.effects.ledger import open_ledger
from prefect_resilience.errors.exceptions import EffectBusy, InDoubt
from prefect_resilience.stores.base import scan_all
from tests.durable.effects.ways.places import Places
from tests.durable.effects.ways.receiver import PATIENCE
from tests.durable.effects.ways.running import AT_A_TIME, Cell, Outcome, Pass, Trial
from tests.durable.effects.ways.way import Combination, Way


def trial(way: Way, given: Combination, places: Places) -> Trial:
    kinds: dict[str, Callable[[Way, Combination, Places], Trial]] = {
        "cached": DecoratedTrial,
        "lease lapses": LapsedTrial,
    }
    return kinds.get(way.staged, Trial)(way, given, places)


class DecoratedTrial(Trial):
    """The function is called only where its decorator accepts it."""

    def passed(self, number: int) -> Pass:
        with self.recorded() as came:
            if "with_options" in self.way.shape:
                resilient_task(**self.options)(self.function).with_options(cache_policy=INPUTS)
            else:
                resilient_task(**self.options, cache_policy=INPUTS)(self.function)
        return super().passed(number) if came.error is None else came


class LapsedTrial(Trial):
    """A second pass asks for the effect while the call hangs and its owner's lease is gone."""

    max_wait = 0.5

    def tried(self) -> Outcome:
        self.store = f"memory://{uuid4().hex}"
        store = open_ledger(self.store).store
        with ThreadPoolExecutor(1) as thread:
            try:
                call = thread.submit(self.passed, 1)
                self.world.held.wait(PATIENCE)
                leases = list(scan_all(store, owner.PREFIX))
                lapsed = [store.delete(place, lease.version) for place, lease in leases]
                meanwhile = self.passed(2)
                self.world.let_go()
                outcome = self.judged(call.result(PATIENCE), self.passed(3))
            finally:
                self.world.settle()
                self.world.close()
        if not lapsed or not isinstance(meanwhile.error, EffectBusy | InDoubt):
            outcome.problems.append(f"a second asker did not wait: {meanwhile}")
        if (meanwhile.entered, meanwhile.asked) != (0, 0):
            outcome.problems.append(f"its owner was taken for gone: {meanwhile}")
        return outcome


@contextmanager
def all_tried(chosen: Sequence[Cell], places: Places) -> Generator[dict[Cell, Future[Outcome]], None, None]:
    """All of them, several at a time; before these, in the main thread, those that interrupt it or fork."""
    tried: dict[Cell, Future[Outcome]] = {}
    for cell in chosen:
        if cell[0].runs_alone:
            tried[cell] = Future()
            tried[cell].set_result(trial(*cell, places).tried())
    pool = ThreadPoolExecutor(AT_A_TIME)
    try:
        for cell in chosen:
            if not cell[0].runs_alone:
                tried[cell] = pool.submit(trial(*cell, places).tried)
        yield {cell: tried[cell] for cell in chosen}
    finally:
        pool.shutdown(cancel_futures=True)
