"""How a circuit finds out that its service is back: probes, their leases, and what they decide."""

from __future__ import annotations

import pytest

from prefect_resilience.guards.circuits.machine import Release, Tick
from prefect_resilience.guards.circuits.model import CircuitPolicy
from tests.guards.circuits.bench import NOW, Bench, Refusal


def test_so_many_probes_at_a_time_and_no_more() -> None:
    bench = Bench(probes=2, probe_lease=60).opened()
    assert bench.asks("a", after=30) is None
    assert bench.asks("b", after=10) is None
    assert bench.asks("c") == Refusal(50)
    assert bench.asks("a") is None, "a lease that is held is held on to"
    assert set(bench["leases"]) == {"a", "b"}
    bench.does(Release("a"))
    assert bench.asks("c") is None


@pytest.mark.parametrize(
    ("probes", "state"),
    [
        ("f", "half_open"),
        ("s", "half_open"),
        ("sf", "half_open"),
        ("fs", "half_open"),
        ("ss", "closed"),
        ("fss", "closed"),
        ("sfs", "closed"),
        ("ff", "open"),
        ("fsf", "open"),
        ("sff", "open"),
    ],
)
def test_two_of_three_probes_decide(probes: str, state: str) -> None:
    bench = Bench().opened().looked(*probes)
    assert bench["state"] == state
    assert state != "open" or bench["reason"] == f"2 of {len(probes)} probes failed"


def test_other_numbers_of_probes_can_be_asked_for() -> None:
    assert Bench(probe_calls=2).opened().looked("f")["reason"] == "a probe failed"
    assert Bench(probe_calls=2).opened().looked("s", "f")["state"] == "open"
    assert Bench(success_threshold=1).opened().looked("f")["state"] == "open"
    assert Bench(success_threshold=1, probe_calls=3).opened().looked("f", "f", "s")["state"] == "closed"
    assert [CircuitPolicy(success_threshold=n).most_probes for n in (1, 2, 3, 4, 10)] == [1, 3, 4, 6, 15]


def test_an_adaptive_circuit_probes_by_the_rate_it_has_learnt() -> None:
    bench = Bench(adaptive=True)
    bench.document["baseline"] = {"calls": 3000.0, "failures": 900.0, "at": NOW}
    bench.calls(("f", 12)).looked("f", "f", "f")
    assert bench["state"] == "half_open", "2 of 5"
    assert bench.probed("s").probed("s")["state"] == "closed"
    bench.calls(("f", 12)).looked("f")
    assert bench["state"] == "open", "it was not well after all"


def test_a_probe_to_which_the_server_says_not_now_opens_it_at_once() -> None:
    bench = Bench().opened().does(Tick(), after=30).probed("f", retry_after=100)
    assert (bench["state"], bench.opening) == ("open", 100)
    bench = Bench().opened().does(Tick(), after=30).probed("f", retry_after=0)
    assert bench["state"] == "half_open"


def test_probes_that_were_all_slow_do_not_close_it() -> None:
    bench = Bench(slow_call=1).opened().does(Tick(), after=30).probed("S").probed("S")
    assert (bench["state"], bench["reason"]) == ("open", "the probes were slow")
    assert bench["unanswered"], "slow answers are none"
    assert bench.looked("S", "s")["state"] == "closed"


def test_a_prober_that_answers_after_its_lease_is_still_heard() -> None:
    """It is evidence of this half-open period: a service slower than the lease must be able to close."""
    bench = Bench(probe_lease=10, success_threshold=1).opened()
    assert bench.asks("slow", after=30) is None
    bench.does(Tick(), after=11)
    assert not bench["leases"]
    assert bench.calls(("s", 1), owner="slow")["state"] == "closed"
