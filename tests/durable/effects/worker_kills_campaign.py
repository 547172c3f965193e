"""Many runs that are killed, side by side, until there have been so many kills; and the table of them."""

from __future__ import annotations

import json
import random
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterId
from prefect.settings import PREFECT_API_URL, PREFECT_CLIENT_RETRY_EXTRA_CODES, temporary_settings

from tests.durable.effects.victim import ASKING, LATE_PHASES, PHASES
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
        """Kills by phase and store, and what became of the effects."""
        stores = sorted({tale.store for tale in self.tales})
        lines = [f"{'killed':<16}" + "".join(f"{store:>12}" for store in stores) + f"{'all':>8}"]
        for phase in (*PHASES, *LATE_PHASES, ASKING):
            counts = [sum(one.kills[phase] for one in self.tales if one.store == store) for store in stores]
            lines.append(f"{phase:<16}" + "".join(f"{count:>12}" for count in counts) + f"{sum(counts):>8}")
        counts = [self.by("store")[(store,)] for store in stores]
        lines.append(f"{'all':<16}" + "".join(f"{count:>12}" for count in counts) + f"{sum(counts):>8}")
        for mode in MODES:
            those = [tale for tale in self.tales if tale.mode == mode]
            lines.append(
                f"{mode}: {sum(tale.kills.total() for tale in those)} kills, {len(those)} runs, "
                f"{sum(tale.sent for tale in those)} effects taken exactly once, "
                f"{sum(tale.doubts for tale in those)} waited for a person"
            )
        routes = ", ".join(f"{route}: {self.by('route')[(route,)]} kills" for route in ROUTES)
        late = sum(tale.late for tale in self.tales)
        recoveries = sum(tale.recoveries for tale in self.tales)
        lines.append(f"{routes}; {recoveries} recoveries, {late} crashes reported late; ")
        return "\n".join(lines) + self.verdict


class Journal:
    """The finished runs of a campaign as lines of a file, from which it goes on when it is begun again."""

    def __init__(self, path: Path | None) -> None:
        self.path = path

    def read(self) -> list[Tale]:
        if self.path is None or not self.path.exists():
            return []
        found = [json.loads(line) for line in self.path.read_text().splitlines()]
        counters = ("kills", "pauses")
        return [Tale(**{**one, **{name: Counter(one.get(name, {})) for name in counters}}) for one in found]

    def write(self, tale: Tale) -> None:
        if self.path is not None:
            with self.path.open("a") as file:
                file.write(json.dumps(vars(tale)) + "\n")


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
    journal: Journal = field(default_factory=lambda: Journal(None))
    until: float = float("inf")
    """When, by `time.monotonic`, no new process is doomed any more."""
    told: Callable[[Toll], None] = lambda toll: None
    patience: int = 0
    """So many runs may be lost because the harness could not go on with them, such as by an API that is
    overloaded for too long."""

    def __post_init__(self) -> None:
        self.fleet.till.written_in(self.stores["postgres"])
        self.toll = Toll(self.journal.read())
        self.running: list[Plot] = []
        self.learned: dict[str, dict[str, int]] = {name: {} for name in self.stores}
        self.next = 1 + max((tale.number for tale in self.toll.tales), default=-1)
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
            self.journal.write(tale)
            self.told(self.toll)
