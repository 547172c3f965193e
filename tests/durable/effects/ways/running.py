"""Try one way in one combination: a run, a later pass over the same batch, and what came of both."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable, Generator, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from typing import Any
from uuid import uuid4

from prefect_resilience import Backoff, ConfigurationError, InDoubt, Retry, Timeout
from prefect_resilience.base.outcomes import UnawaitedResult
from prefect_resilience.calls.model import Guard
from prefect_resilience.durable.effects.ledger import open_ledger
from prefect_resilience.durable.effects.recipes import source_of
from prefect_resilience.effects import Effect
from tests.durable.effects.ways import way as words
from tests.durable.effects.ways.ordinary_shapes import CHANGES
from tests.durable.effects.ways.places import CLIENTS, Places
from tests.durable.effects.ways.receiver import PATIENCE, answer_to
from tests.durable.effects.ways.shapes import GATES, MESSAGES, Gate, function
from tests.durable.effects.ways.surroundings import Here, arun, run, run_either
from tests.durable.effects.ways.way import COMBINATIONS, Combination, Way, applies, effect_options, expected
from tests.durable.effects.ways.world import World

STORE = "memory://ways"
KEY = "message"
MAX_WAIT = 5.0
RETRY = Retry(attempts=3, backoff=Backoff.none(), retry_on=Exception)
HELD_AT_MOST = 1.0
"""Seconds for which a call is held that nobody asks about."""
A_LOOK, A_LATER_LOOK = 0.15, 2.0
"""Seconds in which a second attempt, or a pass after a cancellation, does whatever it does too early."""
AT_A_TIME = 8
"""How many runs go on at once: they mostly wait."""

Cell = tuple[Way, Combination]


@dataclass
class Pass:
    """What one pass over the batch came to."""

    value: Any = None
    error: BaseException | None = None
    replays: int = 0
    attempts: int = 0
    entered: int = 0
    asked: int = 0


@dataclass
class Outcome:
    way: Way
    given: Combination
    ending: str = ""
    taken: str = ""
    error: str = ""
    problems: list[str] = field(default_factory=list[str])


class Trial:
    """One way in one combination, with a world of its own."""

    max_wait = MAX_WAIT

    def __init__(self, way: Way, given: Combination, places: Places, store: str = STORE) -> None:
        self.way, self.given, self.store = way, given, store
        self.make = CLIENTS[way.client]
        self.world = World(
            places.receiver(self.make),
            MESSAGES.get(way.shape, ("a",)),
            way.steps,
            witness=given.proof and self.make.witnessed,
            read_seconds=way.read_seconds,
            folder=places.folder(),
        )
        gate = GATES.get(way.shape)
        self.gate = Gate({}, lambda: None) if gate is None else gate()
        self.batch = uuid4().hex
        change = CHANGES.get(way.shape)
        self.parameters: dict[str, Any] = {} if change is None else {"order": change.make()}
        self.looks = 0
        self.over = threading.Event()

    @property
    def effect(self) -> Effect:
        promised = effect_options(self.given, witnessed=self.make.witnessed)
        verify = self.world.verify if self.given.verify else None
        change = CHANGES.get(self.way.shape)
        key = KEY if change is None else change.key
        # The scope stands for the name of a function at the top of a module.
        named = {"key": key} if key else {"scope": "send"}
        return Effect(**named, verify=verify, max_wait=self.max_wait, **promised)

    @property
    def options(self) -> dict[str, Any]:
        """What the user writes around the function."""
        timeout = None if self.way.timeout is None else Timeout(self.way.timeout, mode=self.way.mode)
        return {"retry": RETRY, "effect": self.effect, "timeout": timeout, **self.gate.options}

    @property
    def function(self) -> Callable[..., Any]:
        return function(self.way.shape, self.world, self.make)

    def tried(self) -> Outcome:
        try:
            with Releasing(self):
                if self.way.cancelled:
                    first, second = asyncio.run(self.cancelled_and_later())
                else:
                    first, second = self.passed(1), Pass()
            self.world.settle()
            return self.judged(first, second if self.way.cancelled else self.passed(2))
        finally:
            self.world.close()

    # -- the passes

    def guard(self) -> Guard:
        fn = self.function
        isasync = self.make.isasync and self.way.has_loop is None
        return Guard(fn, isasync, source=source_of(fn), **self.options)

    def here(self, number: int) -> Here:
        return Here(self.batch, self.store, parameters=self.parameters, begun=number, on_look=self.on_look)

    def passed(self, number: int) -> Pass:
        here = self.here(number)
        with self.recorded() as came:
            if self.way.has_loop:
                came.value = asyncio.run(on_a_loop(self.guard(), here))
            else:
                arguments = tuple(self.parameters.values())
                came.value = run_either(self.guard(), here, self.gate.open, arguments)
        came.replays, came.attempts = here.replays, here.looks
        return came

    async def cancelled_and_later(self) -> tuple[Pass, Pass]:
        """Both on one loop: what the first pass left in a thread may still go on in the second one."""
        here, later = self.here(1), self.here(2)
        with self.recorded() as first:
            running = asyncio.create_task(arun(self.guard(), here))
            await asyncio.to_thread(self.world.held.wait, PATIENCE)
            running.cancel()
            first.value = await running
        with self.recorded() as second:
            second.value = await arun(self.guard(), later)
        second.replays, second.attempts = later.replays, later.looks
        return first, second

    @contextmanager
    def recorded(self) -> Generator[Pass, None, None]:
        """Take down what a pass comes to."""
        came, world = Pass(), self.world
        entered, asked = world.entered, world.asked
        try:
            yield came
        except asyncio.CancelledError:
            came.error = asyncio.CancelledError()  # its traceback would hold what was cancelled
        except Exception as error:
            came.error = error
        came.entered, came.asked = world.entered - entered, world.asked - asked

    def on_look(self) -> None:
        with self.world.changed:
            self.looks += 1
            self.world.changed.notify_all()

    # -- what came of it

    def judged(self, first: Pass, second: Pass) -> Outcome:
        world = self.world
        counts = [world.receiver.taken[message] for message in world.messages]
        told = second if self.way.cancelled else first
        outcome = Outcome(self.way, self.given, self.ending(told), "+".join(map(str, counts)))
        outcome.error = "" if told.error is None else repr(told.error)
        problems = outcome.problems
        if max(counts) > 1:
            problems.append(f"taken more than once: {outcome.taken}")
        for came in (first, second):
            if came.error is None and min(counts) < 1:
                problems.append("unsent in silence")
            if came.error is None and came.value != answer_to(world.messages[-1]):
                problems.append(f"the caller got {came.value!r}")
        allowed = expected(self.way, self.given)
        if outcome.ending not in allowed:
            problems.append(f"ended as {outcome.ending!r}, not as {' or '.join(sorted(allowed))}")
        problems += self.of_later_pass(first, second)
        return outcome

    def of_later_pass(self, first: Pass, second: Pass) -> list[str]:
        """What is done is replayed; what is in doubt stays so, unless somebody can be asked."""
        if first.error is None and (second.replays, second.entered) != (1, 0):
            return [f"a later pass did not replay: {second}"]
        if self.way.cancelled and (first.error is None or isinstance(first.error, Exception)):
            return [f"the first pass was not cancelled: {first}"]
        if self.ending(first) == words.REFUSED:
            again = self.ending(second) == words.REFUSED
            return [] if again else [f"a later pass was not refused: {second}"]
        in_doubt = first.error is not None and not self.way.cancelled and not self.given.verify
        if in_doubt and not isinstance(second.error, InDoubt):
            return [f"a later pass did not stop in doubt: {second}"]
        return []

    def ending(self, came: Pass) -> str:
        if came.error is None:
            if came.asked:
                return words.VERIFIED
            if came.replays:
                return words.LATE
            again = came.entered > 1 or came.attempts > 1 or self.way.cancelled
            return words.RETRIED if again else words.SUCCEEDED
        if isinstance(came.error, ConfigurationError) and self.way.refusal:
            return words.REFUSED if self.way.refusal in str(came.error) else repr(came.error)
        if isinstance(came.error, InDoubt) or self.state() == "unknown":
            return words.IN_DOUBT
        if self.state() in (None, "failed"):
            return words.NOT_SENT
        return f"{type(came.error).__name__}, {self.state()}"

    def state(self) -> str | None:
        """How the effect stands in the ledger."""
        for document, _ in open_ledger(self.store).effects(self.batch):
            return document["state"]
        return None


async def on_a_loop(guard: Guard, here: Here) -> Any:
    """As `@resilient` calls a plain function there: what it returns is awaited under the guards."""
    here.may_go_on = True
    try:
        return run(guard, here)
    except UnawaitedResult as error:
        here.records.clear()
        here.looks = 0
        return await arun(replace(guard, fn=error.going_on(), isasync=True), here)


class Releasing:
    """Lets what is held go on: once a later attempt has looked at the ledger, and did what it does."""

    def __init__(self, trial: Trial) -> None:
        self.trial = trial
        self.thread = threading.Thread(target=self.release, daemon=True)

    def __enter__(self) -> None:
        self.thread.start()

    def __exit__(self, *_: object) -> None:
        self.trial.over.set()
        self.trial.world.held.set()  # else it would wait for that
        with self.trial.world.changed:
            self.trial.world.changed.notify_all()
        self.thread.join(PATIENCE)

    def release(self) -> None:
        trial, world = self.trial, self.trial.world
        world.held.wait()
        with world.changed:
            # A busy machine notices the deadline of a call in a thread late.
            most = HELD_AT_MOST if trial.way.timeout is None else 5 * HELD_AT_MOST
            world.changed.wait_for(lambda: trial.looks > 1 or trial.over.is_set(), most)
            asked, entered = world.asked, world.entered
            look = A_LATER_LOOK if trial.way.cancelled else A_LOOK
            if trial.given.verify and not trial.way.verify_can_tell:
                asked, look = 0, PATIENCE  # the question is to come while the receiver is still at it
            world.changed.wait_for(
                lambda: world.asked > asked or world.entered > entered or trial.over.is_set(), look
            )
        world.let_go()


def cells(chosen: Iterable[Way]) -> list[Cell]:
    """Every way in every combination that there is of it."""
    return [
        (way, given)
        for way in chosen
        for given in COMBINATIONS
        if applies(way, given, witnessed=CLIENTS[way.client].witnessed)
    ]
