"""What the processes of a fleet tell each other of an adaptive limit, on a store in memory."""

import asyncio
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_resilience import AdaptiveLimit
from prefect_resilience.guards.circuits import registry
from prefect_resilience.guards.limits import adaptive, changes, dividing, sharing
from prefect_resilience.guards.limits.adaptive import LimitFinder
from prefect_resilience.guards.limits.dividing import Share
from prefect_resilience.guards.limits.gradient import LimitBounds, new, places
from prefect_resilience.guards.limits.sharing import (
    LimitSnapshot,
    estimated,
    exchanged,
    get_limits,
    interval_for,
    worth_telling,
)
from prefect_resilience.stores import open_store

BOUNDS = LimitBounds(20, 1, 200)


@pytest.fixture
def store(monkeypatch):
    url = f"memory://limits-{random.random()}"
    registry.set_default_store(url)
    opened = open_store(url)
    yield opened
    registry.set_default_store(None)
    opened.close()


class Process:
    """A process of the fleet, with an id of its own."""

    def __init__(self, monkeypatch, number, limit, base=0.1):
        self.monkeypatch, self.id = monkeypatch, f"{number:08x}"
        self.finder = LimitFinder(BOUNDS)
        self.finder.become(new(BOUNDS)._replace(limit=float(limit), center=float(limit), base=base))

    def shares(self, name="llm"):
        self.monkeypatch.setattr(sharing._own, "id", self.id)
        self.finder.share(name, "no line")
        return self.finder


def fleet_of(monkeypatch, number, limit, base=0.1):
    """Processes that have shared their number."""
    fleet = [Process(monkeypatch, n, limit, base) for n in range(number)]
    for process in [*fleet, *fleet]:
        process.shares()
    return fleet


def test_processes_come_to_equal_shares_of_what_they_have_found(store, monkeypatch):
    fleet = [Process(monkeypatch, 1000 * n, limit) for n, limit in enumerate((50, 44, 40, 38))]
    for _ in range(12):
        for process in fleet:
            process.shares()
    states = [process.finder.state for process in fleet]
    assert max(state.center for state in states) - min(state.center for state in states) < 0.5
    assert 38 <= sum(places(state) for state in states) <= 50
    assert max(map(places, states)) - min(map(places, states)) <= 1
    (shown,) = get_limits()
    assert (shown.name, shown.processes, shown.base) == ("llm", 4, 0.1)
    assert abs(shown.number - sum(state.center for state in states)) < 4
    assert shown.least <= shown.most


def test_a_process_alone_stays_where_it_is(store, monkeypatch):
    process = Process(monkeypatch, 7, 33)
    assert process.shares().state.limit == 33
    assert process.finder.interval == sharing.INTERVAL
    assert [one.number for one in get_limits()] == [33]


def test_a_fleet_that_starts_has_the_initial_number_together(store, monkeypatch):
    fleet = fleet_of(monkeypatch, 10, 20, 0.0)
    assert sum(process.finder.number for process in fleet) == 20


def test_a_new_process_takes_its_share_at_once_and_a_dead_one_leaves_its_own(store, monkeypatch):
    now = [1_000.0]
    monkeypatch.setattr(store, "now", lambda: now[0], raising=False)
    fleet = fleet_of(monkeypatch, 4, 40)
    assert sum(process.finder.number for process in fleet) == 40
    new_one = Process(monkeypatch, 9, 20, 0.0)
    assert new_one.shares().number == 8
    for process in fleet:
        process.shares()
    assert sum(process.finder.number for process in (*fleet, new_one)) == 40
    for _ in range(4):  # the first process is dead: it tells nothing any more
        now[0] += sharing.INTERVAL
        for process in (*fleet[1:], new_one):
            process.shares()
    assert get_limits()[0].processes == 4
    assert sum(process.finder.number for process in (*fleet[1:], new_one)) == 40


def test_some_have_one_place_more_if_the_number_cannot_be_divided(store, monkeypatch):
    fleet = [Process(monkeypatch, n, 22 / 4) for n in range(4)]
    for process in fleet:
        process.finder.become(process.finder.state._replace(center=5.5, processes=4))
    for process in [*fleet, *fleet]:
        process.shares()
    assert sorted(process.finder.number for process in fleet) == [5, 5, 6, 6]


def test_an_outage_of_the_store_does_not_multiply_the_share(store, monkeypatch):
    now = [1_000.0]
    monkeypatch.setattr(store, "now", lambda: now[0], raising=False)
    fleet = fleet_of(monkeypatch, 4, 40)
    now[0] += 1_000
    for process in fleet:
        assert process.shares().number <= 11


def test_a_number_that_is_not_told_any_more_expires(store, monkeypatch):
    now = [1_000.0]
    monkeypatch.setattr(store, "now", lambda: now[0], raising=False)
    Process(monkeypatch, 1, 10).shares()
    key = sharing.place_of("llm") + "00000001"
    assert store.load(key).expires_at == pytest.approx(1_030.0)


def test_a_large_fleet_writes_seldom_and_reads_a_sample(store, monkeypatch):
    ids = random.Random(5).sample(range(16**8), 400)
    for number in ids:
        value = {"number": 3, "fleet": 1200.0, "base": 0.1, "in_flight": 1, "waiting": 0, "name": "llm"}
        store.swap(f"{sharing.place_of('llm')}{number:08x}", 0, value)
    process = Process(monkeypatch, sorted(ids)[200] + 1, 50)
    process.shares()
    assert process.finder.state.limit < 4
    assert process.finder.interval == pytest.approx(40, rel=0.35)
    assert get_limits()[0].processes == 401


def test_without_a_store_each_process_goes_on_alone(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("no folder")
    registry.set_default_store(f"sqlite:///{tmp_path}/file/limits.db")
    try:
        process = Process(monkeypatch, 1, 10)
        assert process.shares().state.limit == 10
        assert exchanged("llm", {"number": 1}, 10.0) is None
    finally:
        registry.set_default_store(None)


def test_a_change_is_told_seldom(store, monkeypatch):
    told = []
    listener = changes.change_listeners.add(told.append)
    try:
        process = Process(monkeypatch, 1, 40)
        process.shares()
        assert [(one.name, one.before, one.after, one.fleet) for one in told] == [("llm", 20, 40, 40)]
        process.finder.become(process.finder.state._replace(limit=80.0, center=80.0))
        process.shares()
        assert len(told) == 1
    finally:
        changes.change_listeners.remove(listener)
    assert worth_telling(20, 24, 60)
    assert not worth_telling(20, 23, 60)
    assert not worth_telling(3, 4, 99)


def test_only_a_limit_with_a_name_in_a_run_is_shared(store, monkeypatch):
    shared = []
    monkeypatch.setattr(adaptive, "start_call", lambda fn, *args: shared.append(args))
    named, own = AdaptiveLimit(name="llm"), AdaptiveLimit()
    adaptive._found.by_key.clear()
    for limit in (named, own):
        limit.call(int)
        adaptive._found.by_key[limit._key(limit.name)].shares_at = 0.0
        limit.call(int)
    assert shared == []
    monkeypatch.setattr(adaptive, "run_going_on", lambda: ("flow_run", None))
    for limit in (named, own):
        adaptive._found.by_key[limit._key(limit.name)].shares_at = 0.0
        limit.call(int)
        asyncio.run(limit.acall(int))
    assert shared == [("llm", "adaptive:llm")]


def test_other_values_under_the_keys_are_left_out(store):
    store.swap(f"{sharing.PREFIX}odd/1", 0, ["not", "ours"])
    store.swap(f"{sharing.PREFIX}a%20b/1", 0, {"number": 4})
    assert get_limits() == [
        LimitSnapshot(name="a b", number=4, in_flight=0, waiting=0, processes=1, least=4, most=4, base=0.0)
    ]
    assert sharing._share("odd") == Share(0.0, 0.0)
    assert len(sharing.place_of("x" * 5_000)) < 700


def test_the_rate_of_all_writes_is_bounded():
    for processes in (1, 99, 1_000, 1_000_000):
        assert processes / interval_for(processes) <= sharing.WRITES_PER_SECOND


@settings(max_examples=50, deadline=None)
@given(st.integers(200, 100_000), st.integers(0, 1_000))
def test_a_stretch_of_random_ids_tells_how_many_there_are(processes, seed):
    spaced = random.Random(seed)
    ids = sorted(f"{int(16**8 * sum_):08x}" for sum_ in _first_of(processes, spaced))
    assert estimated(ids, False) == pytest.approx(processes, rel=0.5)


def _first_of(processes, spaced, size=100):
    """The smallest `size` of so many random numbers between 0 and 1."""
    at = 0.0
    for _ in range(size):
        at += spaced.expovariate(processes)
        yield min(at, 0.9999)


def test_a_few_ids_are_counted():
    assert estimated(["00", "ff"], True) == 2
    assert estimated(["00"], False) == 1


shares = st.lists(st.builds(Share, st.floats(0, 200), st.sampled_from([0.0, 0.1, 0.2])), max_size=6)


@settings(max_examples=200, deadline=None)
@given(st.floats(1, 200), shares)
def test_a_look_at_the_others_moves_toward_their_mean_and_stays_in_bounds(limit, others):
    state = new(BOUNDS)._replace(limit=limit, center=limit, base=0.15)
    processes = len(others) + 1
    after = dividing.met(state, others, processes, 0.5, BOUNDS)
    known = [share.fleet for share in others if share.base and share.fleet]
    fleet = dividing.fleet_of(after)
    assert min(limit, *known, math.inf) - 1e-6 <= fleet or after.center == 1
    assert fleet <= max(limit, *known, 0.0) + 1e-6 or after.center == 1
    assert 1 <= after.limit <= 200
    assert after.base == 0.15
