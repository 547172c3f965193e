"""Flow runs whose processes are killed again and again, recovered as an automation would, and judged.

One `Plot` follows one run: it decides where the run's next process is to die, calls `recover` whenever the
run comes to a bad end, settles what waits for a person by the receiver's own book, and says what is wrong.
"""

from __future__ import annotations

import os
import random
import signal
import time
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

import httpx
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.objects import FlowRun, State
from prefect.exceptions import PrefectHTTPStatusError
from prefect.states import Scheduled

from prefect_resilience import Backoff
from prefect_resilience.effects import RecoveryPolicy, RecoveryReport, batch_status, recover, settle
from tests.durable.effects.victim import ASKING, LATE_PHASES, PHASES, SENT_LATE, Book, Doom
from tests.durable.effects.worker_kills_fleet import Fleet, alive, wait_until
from tests.durable.effects.worker_kills_flow import LATE_EVERY, is_late

OPEN_PHASES = ("after intent", "during call", "after call", "before done", *LATE_PHASES)
"""Who dies in these leaves an effect whose outcome nobody knows."""

POLICY = RecoveryPolicy(attempts=1_000, backoff=Backoff.none())
STUCK_SECONDS = 300.0
MOST_MISTAKES, MOST_RECOVERIES = 20, 100
POLL_SECONDS = 0.25
LATE_CALLS = 0.75
"""In runs with calls that outlive their attempts: how many of the kills are during one of these."""

PAUSES, PAUSED_TO_DEATH = 0.3, 0.3
"""How often a process is stopped rather than killed, and how many of these are killed then."""

SHORTEST_STOP, LONGEST_STOP = 2.5, 5.0
"""Seconds: longer than a lease, and shorter than the quiet time after it."""


@dataclass(frozen=True)
class Case:
    """One run: its number, the name and the URL of its store, what its receiver can do, how it is started."""

    number: int
    store: str
    url: str
    mode: str
    route: str
    count: int = 20
    most_kills: int = 8
    apart: bool = False
    """Whether each of its processes is as if on a machine of its own."""

    @property
    def late(self) -> bool:
        """Whether some of its calls outlive their attempts."""
        return " " in self.mode

    @property
    def asked(self) -> bool:
        """Whether its receiver can be asked."""
        return self.mode.endswith("asked") or self.mode in ("changed", "native")

    @property
    def blind(self) -> bool:
        """Whether only a person can tell what became of a call."""
        return self.mode.endswith("blind")


@dataclass
class Tale:
    """What came of one run."""

    number: int
    store: str
    mode: str
    route: str
    kills: Counter[str] = field(default_factory=Counter)
    pauses: Counter[str] = field(default_factory=Counter)
    """Times that a process was stopped, by what came then: "continued" or "killed"."""
    twice: int = 0
    lost: int = 0
    sent: int = 0
    """Effects that the receiver took exactly once."""
    doubts: int = 0
    """Times that an effect waited for a person."""
    recoveries: int = 0
    seconds: float = 0.0
    mistakes: list[str] = field(default_factory=list)


class Plot:
    """One run from its creation to its end."""

    def __init__(
        self,
        fleet: Fleet,
        client: SyncPrefectClient,
        case: Case,
        chance: random.Random,
        learned: dict[str, int],
        wanted: Callable[[], bool],
    ) -> None:
        self.fleet, self.client, self.case, self.chance = fleet, client, case, chance
        self.learned, self.wanted = learned, wanted
        self.tale = Tale(case.number, case.store, case.mode, case.route)
        self.path = str(fleet.folder / f"plot-{case.number}")
        self.book = Book(self.path)
        self.seen = self.born = 0
        self.dooms = case.number
        """Counts through the phases, so that few kills meet them all."""
        self.alone = True
        """Whether no process of the run was there when its traces were looked at last."""
        self.stopped: list[tuple[float, dict[str, Any]]] = []
        """The processes that are stopped, and until when."""
        self.met = 0
        self.settled: set[str] = set()
        """The effects that a person has settled since the traces were looked at last."""
        self.run_id: Any = None
        self.said = "nothing yet"
        self.state: State[Any] | None = None
        """The newest that the campaign, which asks for all runs at once, has seen."""

    @property
    def batch_id(self) -> str:
        return str(self.run_id)

    def follow(self) -> Tale:
        began = time.monotonic()
        self._doom()
        self._create()
        handled, since = None, began
        while True:
            state = self.state
            if state is None:
                time.sleep(POLL_SECONDS)
                continue
            self._go_on_with_stopped()
            if state.id != handled:
                handled = state.id
                self._came_to(state)
                since = time.monotonic()  # a recovery may wait for minutes until a worker has let go
            still = time.monotonic() - since
            if state.is_completed() and still > 1.0 and not self._living():
                break
            if still > STUCK_SECONDS and not self._living():
                self._wrong(f"its run stays {state.name}: {state.message} Recovery said {self.said}")
                break
            if len(self.tale.mistakes) > MOST_MISTAKES or self.tale.recoveries > MOST_RECOVERIES:
                self._wrong(f"it is given up after {self.tale.recoveries} recoveries")
                break
            time.sleep(POLL_SECONDS)
        self._look()
        self._judge()
        self.tale.seconds = time.monotonic() - began
        return self.tale

    # -- the run

    def _create(self) -> None:
        case = self.case
        till = self.fleet.till
        given = {"url": till.url, "mode": case.mode, "count": case.count, "plot": self.path}
        given |= {"rows": till.rows, "apart": case.apart}
        variables = {"env": {"PREFECT_RESILIENCE_STORE_URL": case.url}}
        self.run_id = create_run(self.client, self.fleet.deployments[case.route], given, variables).id
        if case.mode == "keys":
            self.fleet.till.honoured.add(self.batch_id)

    def _came_to(self, state: State[Any]) -> None:
        if not (state.is_crashed() or state.is_failed()):
            return
        self._look()
        if state.is_failed() and not (self.case.blind and "InDoubt" in (state.message or "")):
            self._wrong(f"its run failed: {state.message}")
        self._doom()
        unknown = self._unknown()
        report = self._recover()
        if report.action == "told":
            self._settle(state)
            report = self._recover()
        elif report.action == "rescheduled" and self.case.blind and unknown:
            self._wrong(f"nobody was asked about {unknown}")
        if report.action == "rescheduled":
            self.tale.recoveries += 1
        elif report.action not in ("refused", "nothing"):
            self._wrong(f"recovery said {report.action}: {report.why}")
        self.said = f"{report.action}: {report.why}"

    def _recover(self) -> RecoveryReport:
        """Recover it. A recovery waits for the run's process, so one that is stopped goes on meanwhile."""
        call = partial(copy_context().run, recover, self.batch_id, policy=POLICY, store=self.case.url)
        with ThreadPoolExecutor(1) as beside:
            recovery = beside.submit(call)
            while not recovery.done():
                self._go_on_with_stopped()
                time.sleep(POLL_SECONDS)
            return recovery.result()

    def _go_on_with_stopped(self) -> None:
        """Begin with the run again while a process of it is stopped, as a person may by the Retry button; let
        that process go on, or kill it, when its time is up."""
        paused = self.book.lines("paused")
        new, self.met = paused[self.met :], len(paused)
        for one in new:
            self.learned.update(one["counts"])
            self.stopped.append((time.monotonic() + self.chance.uniform(SHORTEST_STOP, LONGEST_STOP), one))
            self._doom()
            self.client.set_flow_run_state(self.run_id, Scheduled(message="while it hangs"), force=True)
        for until, one in [*self.stopped]:
            if time.monotonic() < until:
                continue
            self.stopped.remove((until, one))
            to_death = self.chance.random() < PAUSED_TO_DEATH
            self.tale.pauses["killed" if to_death else "continued"] += 1
            if to_death:
                about = {name: one[name] for name in ("pid", "order", "phase", "counts")}
                self.book.write("killed", **about, where=f"{one['where']}, stopped")
            os.kill(one["pid"], signal.SIGKILL if to_death else signal.SIGCONT)

    def _living(self) -> bool:
        return any(alive(one["pid"]) for one in self.book.lines("born"))

    # -- where its next process is to die

    def _doom(self) -> None:
        Path(f"{self.path}.doom").unlink(missing_ok=True)
        left = self.case.most_kills - self.tale.kills.total()
        if left <= 0 or not self.wanted():
            return
        states = [one.state for one in self._effects()] if self.run_id is not None else []
        done = states.count("done")
        order = done + self.chance.randint(0, max(0, (self.case.count - 1 - done) // left))
        roll = self.chance.random()
        late = self.case.late and self.chance.random() < LATE_CALLS
        if late:
            order += -(order + 1) % LATE_EVERY
        if roll < 0.12 and self.case.mode != "native":
            Doom(order, "during call", by_receiver=self.chance.choice(("holding", "taken"))).write(self.path)
            return
        phase = (LATE_PHASES if late else PHASES)[self.dooms % (3 if late else 6)]
        self.dooms += 1
        pause = self.chance.random() < PAUSES
        if "unknown" in states and self.case.asked and roll < 0.4:
            phase, order = ASKING, done
        nth = self.chance.randint(1, self.learned.get(phase, 100))
        Doom(order, phase, nth, pause=pause).write(self.path)

    def _effects(self) -> tuple[Any, ...]:
        return batch_status(self.batch_id, store=self.case.url).effects

    def _unknown(self) -> tuple[str, ...]:
        return tuple(one.key for one in self._effects() if one.state == "unknown")

    # -- looking at what was left behind

    def _look(self) -> None:
        """What the dead left behind, beside what the ledger and the receiver know."""
        killed = self.book.lines("killed")
        new, self.seen = killed[self.seen :], len(killed)
        for one in new:
            self.tale.kills[one["phase"]] += 1
            self.learned.update(one.get("counts", {}))
        self._counts()
        born = self.book.lines("born")
        alone, self.alone = self.alone, not self._living()
        lone = [one["pid"] for one in born[self.born :]] == [one["pid"] for one in new]
        self.born = len(born)
        # Another process of the run may have gone on with the effect since.
        if len(new) == 1 and lone and alone and self.alone and not self.case.apart:
            self._left_behind(new[0])
        self.settled.clear()

    def _counts(self) -> None:
        till = self.fleet.till
        if self.case.mode == "native":
            till.count_rows(self.batch_id)
        for order in range(self.case.count):
            key = f"{self.batch_id}.{order}"
            if till.taken[key] > 1 or (till.arrived[key] > 1 and self.case.mode != "keys"):
                self._wrong(f"order {order} arrived {till.arrived[key]} times, taken {till.taken[key]}")

    def _left_behind(self, killed: dict[str, Any]) -> None:
        """The ledger must say the same of the effect as the place where its process died."""
        key, phase = f"{self.batch_id}.{killed['order']}", killed["phase"]
        state = next((one.state for one in self._effects() if one.key == key), None)
        if "stores/" in killed["where"] or key in self.settled:
            return  # on either side of the write; or its process died while a recovery was on its way
        expected: tuple[str | None, ...] = ("unknown",) if phase in OPEN_PHASES else ("done",)
        if phase == "before done" and is_late(self.case.mode, killed["order"]):
            expected = ("unknown", "done")  # who died was not the thread that was recording it
        if phase == SENT_LATE and "asked" in self.case.mode:
            expected = ("unknown", "done")  # the next attempt had asked `verify`, which says that it was sent
        if phase in ("before intent", ASKING):
            # What was unknown already waits for its question, unless a person began the run while it hung.
            waits = not self.case.blind or self.met > 0
            expected = (None, "failed", "done") + (("unknown",) if waits else ())
        if state not in expected:
            self._wrong(f"{killed} left order {killed['order']} {state}")

    # -- a person

    def _settle(self, state: State[Any]) -> None:
        """What a person does: look into the receiver's own book, and say what it says. `state` is what the
        person was told of."""
        unknown = self._unknown()
        hint = batch_status(self.batch_id, store=self.case.url).hint
        same = unknown == self._unknown()  # another process may have died meanwhile
        if hint is None:  # rightly where a worker has begun with the run again meanwhile
            wrong = self.client.read_flow_run(self.run_id).state_id == state.id
        else:
            wrong = same and hint.waiting != unknown
        if wrong or not unknown or not self.case.blind:
            self._wrong(f"a person was told of {hint and hint.waiting}, in doubt are {unknown}")
        for key in unknown:
            self.tale.doubts += 1
            self.settled.add(key)
            taken = httpx.get(f"{self.fleet.till.url}/{key}", timeout=30).json()["taken"]
            if taken:
                settle(self.batch_id, key, "done", f"m-{key}", f"m-{key}", by="ada", store=self.case.url)
            else:
                settle(self.batch_id, key, "not_done", by="ada", store=self.case.url)

    # -- the end

    def _judge(self) -> None:
        keys = [f"{self.batch_id}.{order}" for order in range(self.case.count)]
        effects = {one.key: one for one in self._effects()}
        for key in keys:
            taken = self.fleet.till.taken[key]
            self.tale.sent += taken == 1
            self.tale.twice += taken > 1
            self.tale.lost += taken == 0
            state = effects[key].state if key in effects else None
            if taken != 1 or state != "done":
                self._wrong(f"{key} was taken {taken} times and is {state}")
        for said in self.book.lines("sent"):
            if said["ids"] != [f"m-{key}" for key in keys]:
                self._wrong(f"the flow was told {said['ids']}")
        if not self.book.lines("sent"):
            self._wrong("the flow did not come to its end")

    def _wrong(self, what: str) -> None:
        case = self.case
        self.tale.mistakes.append(
            f"run {case.number} ({case.store}, {case.mode}, {case.route}), {self.batch_id}: {what}"
        )


def create_run(client: SyncPrefectClient, deployment: Any, given: dict[str, Any], variables: Any) -> FlowRun:
    """A run of a deployment, once, whatever a busy server answers meanwhile."""
    key = uuid4().hex

    def created() -> Any:
        try:
            return client.create_flow_run_from_deployment(
                deployment, parameters=given, job_variables=variables, idempotency_key=key
            )
        except PrefectHTTPStatusError as error:
            if error.response.status_code != httpx.codes.SERVICE_UNAVAILABLE:
                raise
            return None

    return wait_until(created)
