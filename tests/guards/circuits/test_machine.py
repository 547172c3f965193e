"""The rules of the circuit, one by one, on documents and a clock in hand."""

from typing import Any

import pytest

from prefect_resilience.guards.circuits.machine import Force, Release, Reset, Tick, Transition, new
from tests.guards.circuits.bench import NOW, Bench, Refusal

# -- opening


@pytest.mark.requirement("000.22")
def test_it_opens_on_consecutive_failures() -> None:
    bench = Bench().calls(("f", 4))
    assert bench["state"] == "closed"
    bench.calls(("s", 1)).calls(("f", 4))
    assert (bench["state"], bench["failures_in_row"]) == ("closed", 4)
    bench.calls(("f", 1), last_error="503")
    assert bench["state"] == "open"
    assert bench.changes == [Transition("closed", "open", NOW, "5 failures in a row", 2, NOW + 30, "503")]


@pytest.mark.requirement("003.06")
def test_failures_in_a_row_count_once_there_are_enough_calls() -> None:
    bench = Bench(failure_threshold=3, volume_threshold=10, minimum_calls=100)
    assert bench.calls(("f", 9))["state"] == "closed"
    assert bench.calls(("f", 1))["reason"] == "10 failures in a row"
    busy = Bench(failure_threshold=3, volume_threshold=10, minimum_calls=100).calls(("s", 8), ("f", 2))
    assert busy["state"] == "closed"
    assert busy.calls(("f", 1))["reason"] == "3 failures in a row"


def test_it_opens_on_a_rate_of_failures_once_there_are_enough_calls() -> None:
    bench = Bench(failure_threshold=100, failure_rate=0.5, minimum_calls=10)
    bench.calls(("s", 1), ("f", 8))
    assert bench["state"] == "closed"
    bench.calls(("s", 1))
    assert (bench["state"], bench["reason"]) == ("open", "8 of 10 calls failed")


def test_it_opens_on_a_rate_of_slow_calls() -> None:
    bench = Bench(slow_call=1, slow_rate=0.5).calls(("s", 6), ("S", 5))
    assert bench["state"] == "closed"
    bench.calls(("S", 1))
    assert (bench["state"], bench["reason"]) == ("open", "6 of 12 calls were slow")


# -- how long it stays open


def test_every_reopening_lasts_longer_up_to_the_maximum_and_a_recovery_resets_it() -> None:
    bench = Bench(open_for=30, open_backoff=2, open_max=100).opened()
    lasted = [bench.opening]
    for probes in ("ff", "f", "f", "f"):
        bench.looked(*probes)
        lasted.append(bench.opening)
    assert lasted == [30, 15, 60, 100, 100], "the first re-opening is a short one, for a second look"
    bench.looked("s", "s").calls(("s", 9))
    assert (bench["state"], bench["openings"]) == ("closed", 5)
    bench.calls(("s", 1))
    assert bench["openings"] == 0
    assert bench.opened().opening == 30


def test_the_servers_retry_after_lengthens_an_opening_and_never_shortens_it() -> None:
    assert Bench().calls(("f", 5), retry_after=120).opening == 120
    assert Bench().calls(("f", 5), retry_after=7).opening == 30
    assert Bench().calls(("f", 5), retry_after=-7).opening == 30
    assert Bench().calls(("f", 5), retry_after=1e12).opening == 86_400
    bench = Bench().opened().does(Tick(), after=30).probed("f", retry_after=500)
    assert bench.opening == 500


# -- by hand


def test_forced_open_until_a_moment_ends_with_a_probe() -> None:
    bench = Bench().does(Force("forced_open", "maintenance", NOW + 100))
    assert bench.asks("a", after=40) == Refusal(60)
    assert bench.asks("a", after=60) is None
    assert bench.calls(("s", 1), owner="a").probed("s")["state"] == "closed"


def test_a_reset_is_the_first_day_again_but_for_the_fence() -> None:
    bench = Bench().opened().does(Reset())
    assert bench["state"] == "closed"
    assert bench.opened().opening == 30
    bench = Bench().calls(("f", 4), last_error="503", retry_after=9).does(Reset("by hand"))
    assert {**bench.document, "generation": 1, "updated_at": 0.0, "reason": None, "history": []} == new()
    assert (bench["reason"], bench.changes) == ("by hand", [])
    assert bench.calls(("f", 5), generation=1)["state"] == "closed", "what was under way is fenced"


# -- the clock


def test_a_clock_that_is_set_back_keeps_nobody_waiting_longer() -> None:
    bench = Bench().opened().does(Tick(), after=-500_000)
    assert (bench["opened_at"], bench.opening) == (NOW - 500_000, 30)
    assert bench.asks("a", after=30) is None
    bench.does(Tick(), after=-500_000)
    assert bench["leases"] == {"a": [bench.now, bench.now + 60]}
    assert bench.asks("b", after=60) is None


# -- leases and counts of probes


def test_a_service_that_answers_some_probes_is_not_counted_as_unanswered() -> None:
    bench = Bench(success_threshold=2, probe_calls=3).opened().looked("s", "f", "f")
    assert (bench["state"], bench["reason"]) == ("open", "2 of 3 probes failed")
    assert (bench["openings"], bench["unanswered"]) == (1, 0)
    assert (bench["successes"], bench["probe_failures"]) == (0, 0)
    silent = Bench(success_threshold=2, probe_calls=2).opened().looked("f")
    assert (silent["state"], silent["reason"]) == ("open", "a probe failed")
    assert (silent["openings"], silent["unanswered"]) == (2, 1)


def test_counts_begin_anew_with_every_state() -> None:
    bench = Bench(success_threshold=2, minimum_calls=3).opened().looked("s", "s")
    assert (bench["state"], bench["successes"], bench["probe_failures"]) == ("closed", 0, 0)
    assert bench.calls(("f", 1))["successes"] == 0
    assert bench.calls(("s", 2))["successes"] == 2
    recovered = bench.calls(("s", 1))
    assert (recovered["openings"], recovered["successes"]) == (0, 0)
    assert recovered.calls(("s", 5))["successes"] == 0


def test_a_server_that_asks_for_no_pause_holds_nothing_back() -> None:
    assert Bench().calls(("f", 1), retry_after=0)["hold_until"] == NOW
    assert Bench().calls(("s", 1), retry_after=60)["hold_until"] is None


def test_slow_failures_are_failures_wherever_calls_are_judged() -> None:
    bench = Bench().calls(("F", 2), retry_after=100).calls(("F", 3))
    assert (bench["reason"], bench.opening) == ("5 failures in a row", 100)
    probing = Bench(success_threshold=1, probe_calls=1).opened().looked("F")
    assert (probing["state"], probing["reason"], probing["failures_in_row"]) == ("open", "a probe failed", 6)
    adaptive = Bench(adaptive=True, window=2).calls(("F", 3))
    assert (adaptive["baseline"]["calls"], adaptive["baseline"]["failures"]) == (3.0, 3.0)


def test_each_change_says_why() -> None:
    bench = Bench(slow_call=1).opened().looked("s", "s").opened().looked("S", "S")
    bench.does(Force("forced_open", "maintenance"), Force("closed", "done"))
    assert [(change.after, change.reason) for change in bench.changes] == [
        ("open", "5 failures in a row"),
        ("half_open", "open period elapsed; waiting for a probe"),
        ("closed", "the service has recovered"),
        ("open", "5 failures in a row"),
        ("half_open", "open period elapsed; waiting for a probe"),
        ("open", "the probes were slow"),
        ("forced_open", "maintenance"),
        ("closed", "done"),
    ]


@pytest.mark.parametrize("state", ["closed", "disabled"])
def test_a_circuit_that_lets_calls_pass_has_nothing_left_of_an_opening(state: Any) -> None:
    bench = Bench(slow_call=1).calls(("f", 1), retry_after=90).opened().looked("S", "f", "f")
    counts = ("successes", "slow_successes", "probe_failures", "unanswered", "retry_at", "hold_until")
    bench.document.update(slow_successes=1, successes=1, probe_failures=1, unanswered=1, hold_until=NOW)
    bench.does(Force(state, "by hand"))
    expected = (0, 0, 0, 0, None, None) if state == "closed" else (1, 1, 1, 1, None, None)
    assert tuple(bench[name] for name in counts) == expected
    assert (bench["last_error"], bench["opened_at"] is None) == (None, state == "disabled")


def test_a_half_open_period_begins_without_counts_and_without_an_end() -> None:
    bench = Bench().opened()
    bench.document.update(successes=1, slow_successes=1, probe_failures=1)
    bench.does(Tick(), after=30)
    names = ("successes", "slow_successes", "probe_failures", "retry_at")
    assert [bench[name] for name in names] == [0, 0, 0, None]


def test_a_forced_opening_and_a_lease_from_the_future_begin_now_and_last_as_long() -> None:
    bench = Bench().does(Force("forced_open", "m", NOW + 100)).does(Tick(), after=-500)
    assert (bench["opened_at"], bench["retry_at"]) == (NOW - 500, NOW - 400)
    bench.document.update(opened_at=NOW, retry_at=NOW - 10)
    bench.does(Tick())
    assert (bench["state"], bench["retry_at"]) == ("half_open", None)
    leased = Bench().opened()
    leased.does(Tick(), after=30)
    leased.document["leases"] = {"a": [leased.now + 10, leased.now + 30], "b": [leased.now, leased.now + 30]}
    leased.does(Tick())
    assert leased["leases"] == {"a": [leased.now, leased.now + 20], "b": [leased.now, leased.now + 30]}


def test_only_an_adaptive_circuit_reads_what_was_usual() -> None:
    bench = Bench(failure_threshold=3)
    bench.document["baseline"] = {"calls": 1000.0, "failures": 400.0, "at": NOW}
    assert bench.calls(("f", 3))["state"] == "open"
    adaptive = Bench(failure_threshold=3, adaptive=True)
    adaptive.document["baseline"] = {"calls": 1000.0, "failures": 400.0, "at": NOW}
    assert adaptive.calls(("f", 3))["state"] == "closed"


def test_a_reset_forgets_what_was_usual() -> None:
    bench = Bench(adaptive=True)
    bench.document["baseline"] = {"calls": 100.0, "failures": 10.0, "at": NOW}
    assert bench.does(Reset())["baseline"] is None


def test_a_lease_may_be_given_back_twice() -> None:
    bench = Bench().opened()
    assert bench.asks("a", after=30) is None
    bench.does(Release("a"), Release("a"))
    assert bench["leases"] == {}
