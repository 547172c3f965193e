"""Many runs that are killed, side by side, until there have been so many kills; and the table of them."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_RETRY_EXTRA_CODES, temporary_settings

from tests.durable.effects.worker_kills import POLL_SECONDS, Case, Plot, Tale
from tests.durable.effects.worker_kills_fleet import ROUTES, Fleet
from tests.durable.effects.worker_kills_flow import MODES

APART_EVERY = 5
"""Each fifth run has processes that are as if on a machine of their own each."""


@dataclass
class Toll:
    """What came of many runs."""

    tales: list[Tale] = field(default_factory=list)
    twice: list[str] = field(default_factory=list)
    """What the receiver has in its book more than once when all is over."""

    @property
    def kills(self) -> int:
        return sum(tale.kills.total() for tale in self.tales)

    @property
    def mistakes(self) -> list[str]:
        return [mistake for tale in self.tales for mistake in tale.mistakes] + self.twice

    @property
    def verdict(self) -> str:
        """What it comes to, in one line."""
        twice, lost = sum(tale.twice for tale in self.tales), sum(tale.lost for tale in self.tales)
        paused = sum((tale.pauses for tale in self.tales), Counter[str]())
        pauses = f"{paused.total()} pauses, of which {paused['killed']} ended in a kill"
        return f"{twice} twice, {lost} lost, {len(self.mistakes)} mistakes; {self.kills} kills, {pauses}"

    def by(self, *names: str) -> Counter[tuple[str, ...]]:
        """Kills by what the tales say under these names."""
        found: Counter[tuple[str, ...]] = Counter()
        for tale in self.tales:
            found[tuple(getattr(tale, name) for name in names)] += tale.kills.total()
        return found

    def table(self) -> str:
        """Kills by phase, and by what the runs were like."""
        kills = sum((tale.kills for tale in self.tales), Counter[str]())
        by = {name: self.by(name) for name in ("store", "mode", "route")}
        doubts = sum(tale.doubts for tale in self.tales)
        recoveries = sum(tale.recoveries for tale in self.tales)
        rest = f"{recoveries} recoveries, {doubts} times a person was asked"
        return "\n".join([f"{dict(kills)}", f"{by}", rest, self.verdict])


@dataclass
class Campaign:
    """`kills` and `lanes` (runs at a time) by route; `stores` are the URLs by name."""

    fleet: Fleet
    api: str
    stores: Mapping[str, str]
    kills: Mapping[str, int]
    lanes: Mapping[str, int]
    seed: int = 0
    count: int = 20
    most_kills: Mapping[str, int] = field(default_factory=dict)
    until: float = float("inf")
    """When, by `time.monotonic`, no new process is doomed any more."""
    told: Callable[[Toll], None] = lambda toll: None
    patience: int = 0
    """So many runs may be lost because the harness could not go on with them, such as by an API that is
    overloaded for too long."""

    def __post_init__(self) -> None:
        self.fleet.till.written_in(self.stores["postgres"])
        self.toll = Toll()
        self.running: list[Plot] = []
        self.learned: dict[str, dict[str, int]] = {name: {} for name in self.stores}
        self.next = 0
        self.lock = threading.Lock()
        self.failures: list[Exception] = []

    def go(self) -> Toll:
        lanes = [
            threading.Thread(target=self._lane, args=(route,), name=f"lane-{route}-{n}", daemon=True)
            for route in ROUTES
            for n in range(self.lanes.get(route, 0))
        ]
        for lane in lanes:
            lane.start()
        with self._asking() as client:
            while any(lane.is_alive() for lane in lanes):
                self._see(client)
                time.sleep(2 * POLL_SECONDS)
        self.toll.twice = [f"{key} was taken {n} times" for key, n in self.fleet.till.taken.items() if n > 1]
        if len(self.failures) > self.patience:
            raise self.failures[0]
        return self.toll

    @contextmanager
    def _asking(self) -> Iterator[SyncPrefectClient]:
        # A server on SQLite says 500 when it is too busy.
        settings = {PREFECT_API_URL: self.api, PREFECT_CLIENT_RETRY_EXTRA_CODES: "500"}
        with temporary_settings(settings), get_client(sync_client=True) as client:
            yield client

    def _see(self, client: SyncPrefectClient) -> None:
        """Ask how all runs stand, at once."""
        with self.lock:
            plots = {plot.run_id: plot for plot in self.running if plot.run_id is not None}
        if plots:
            those = FlowRunFilter(id=FlowRunFilterId(any_=list(plots)))
            for run in client.read_flow_runs(flow_run_filter=those):
                plots[run.id].state = run.state

    def _lane(self, route: str) -> None:
        while self._wanted(route) and len(self.failures) <= self.patience:
            case = self._case(route)
            chance = random.Random(f"{self.seed}.{case.number}")
            try:
                with self._asking() as client:
                    learned = self.learned[case.store]
                    plot = Plot(self.fleet, client, case, chance, learned, lambda: self._wanted(route))
                    with self.lock:
                        self.running.append(plot)
                    self._over(plot, plot.follow())
            except Exception as failure:
                with self.lock:
                    self.failures.append(failure)
                    self.running = [one for one in self.running if one.case is not case]

    def _case(self, route: str) -> Case:
        """The next run: every store meets every mode."""
        with self.lock:
            number, self.next = self.next, self.next + 1
        name = list(self.stores)[(number + number // len(MODES)) % len(self.stores)]
        mode = list(MODES)[number % len(MODES)]
        most = self.most_kills.get(route, 8)
        apart = number % APART_EVERY == 0
        return Case(number, name, self.stores[name], mode, route, self.count, most, apart)

    def _wanted(self, route: str) -> bool:
        with self.lock:
            tales: Iterable[Tale] = [*self.toll.tales, *(plot.tale for plot in self.running)]
            killed = sum(tale.kills.total() for tale in tales if tale.route == route)
        return killed < self.kills.get(route, 0) and time.monotonic() < self.until

    def _over(self, plot: Plot, tale: Tale) -> None:
        with self.lock:
            self.running.remove(plot)
            self.toll.tales.append(tale)
            self.told(self.toll)
