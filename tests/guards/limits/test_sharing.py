"""What the processes of a fleet tell each other of an adaptive limit, on a store in memory."""

import asyncio
import math
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_resilience import AdaptiveLimit
from prefect_resilience.guards.circuits import registry
from prefect_resilience.guards.limits import adaptive, changes, gradient, sharing
from prefect_resilience.guards.limits.adaptive import LimitFinder
from prefect_resilience.guards.limits.gradient import Level, LimitBounds, Share, new
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
        self.finder.state = new(BOUNDS)._replace(limit=float(limit), base=base)

    def shares(self, name="llm"):
        self.monkeypatch.setattr(sharing._own, "id", self.id)
        self.finder.share(name, "no line")
        return self.finder


def test_processes_come_to_equal_shares_and_their_sum_stays(store, monkeypatch):
    fleet = [Process(monkeypatch, 1000 * n, limit) for n, limit in enumerate((60, 12, 6, 2))]
    for _ in range(8):
        for process in fleet:
            process.shares()
    limits = [process.finder.state.limit for process in fleet]
    assert max(limits) - min(limits) < 1
    assert sum(limits) == pytest.approx(80, rel=0.3)
    (shown,) = get_limits()
    assert (shown.name, shown.processes, shown.base) == ("llm", 4, 0.1)
    assert abs(shown.number - sum(limits)) < 8
    assert shown.least <= shown.most


def test_a_process_alone_stays_where_it_is(store, monkeypatch):
    process = Process(monkeypatch, 7, 33)
    assert process.shares().state.limit == 33
    assert process.finder.interval == sharing.INTERVAL
    assert [one.number for one in get_limits()] == [33]


def test_a_base_with_calls_that_wait_is_corrected_by_the_others(store, monkeypatch):
    fleet = [Process(monkeypatch, n, 10, base) for n, base in enumerate((0.1, 0.11, 0.3))]
    for process in [*fleet, *fleet]:
        process.shares()
    assert fleet[2].finder.state.base == 0.1
    assert fleet[0].finder.state.base == 0.1


def test_an_experiment_is_not_disturbed_and_the_limit_before_it_is_told(store, monkeypatch):
    other, process = Process(monkeypatch, 1, 10), Process(monkeypatch, 2, 26)
    process.finder.state = process.finder.state._replace(trial=Level(40.0, 0.1))
    other.shares()
    assert process.shares().state.limit == 26
    assert sorted(get_limits()[0].model_dump()[key] for key in ("least", "most")) == [10, 40]


def test_a_number_that_is_not_told_any_more_expires(store, monkeypatch):
    now = [1_000.0]
    monkeypatch.setattr(store, "now", lambda: now[0], raising=False)
    Process(monkeypatch, 1, 10).shares()
    key = sharing.place_of("llm") + "00000001"
    assert store.load(key).expires_at == pytest.approx(1_030.0)


def test_a_large_fleet_writes_seldom_and_reads_a_sample(store, monkeypatch):
    ids = random.Random(5).sample(range(16**8), 400)
    for number in ids:
        value = {"number": 3, "limit": 3.0, "base": 0.1, "in_flight": 1, "waiting": 0, "name": "llm"}
        store.swap(f"{sharing.place_of('llm')}{number:08x}", 0, value)
    process = Process(monkeypatch, sorted(ids)[200] + 1, 50)
    process.shares()
    assert process.finder.state.limit < 30
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
        process.finder.state = process.finder.state._replace(limit=80.0)
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
    state = new(BOUNDS)._replace(limit=limit, base=0.15, proven=0.9 * limit)
    after = gradient.met(state, others, BOUNDS)
    known = [share.limit for share in others if share.base and share.limit]
    if not known:
        assert after == state
        return
    assert min(limit, *known) - 1e-9 <= after.limit or after.limit == 1
    assert after.limit <= max(limit, *known) + 1e-9
    assert 1 <= after.limit <= 200
    assert after.base <= state.base
    assert math.isclose(after.proven, 0.9 * after.limit)
    assert gradient.met(state._replace(base=0.0), others, BOUNDS).limit == limit
