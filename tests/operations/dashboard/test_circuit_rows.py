"""Circuits as rows: what is bad comes first, what is sent is bounded, the headline says it in a sentence."""

from __future__ import annotations

import pytest

from prefect_resilience.guards.circuits import machine, window
from prefect_resilience.guards.circuits.model import CircuitSnapshot
from prefect_resilience.operations.dashboard.rows import (
    Circuits,
    circuit_row,
    circuits_headline,
    headline,
    summary,
)

NOW = 1_000_000.0
SECRET = "sk-ant-api03-abcdefghijklmnopqrstuvwxyz0123456789"


def document(good=0, bad=0, at=NOW - 1, **fields):
    made = {**machine.new(), **fields}
    if good or bad:
        made["window"] = window.record(None, 60.0, [("s", good), ("f", bad)], at)
    return made


def row(state="closed", calls=0, failures=0, seconds=60.0, **fields):
    snapshot = CircuitSnapshot(name="c", state=state, window_calls=calls, window_failures=failures, **fields)
    return circuit_row(snapshot, None if seconds is None else {"seconds": seconds})


def test_the_worst_have_the_lowest_rank():
    ordered = [
        row("open"),
        row("forced_open"),
        row("half_open"),
        row(calls=10, failures=5),
        row(calls=10, failures=3),
        row(calls=10, failures=1),
        row("disabled"),
        row(calls=4, failures=4),
    ]
    assert [one["rank"] for one in ordered] == sorted({one["rank"] for one in ordered})
    assert [one["level"] for one in ordered] == [
        *("open", "open", "probing"),
        *("failing", "failing", "failing"),
        *("off", "good"),
    ]


def test_what_is_nothing_is_not_sent():
    assert row(seconds=None) == {"state": "closed", "level": "good", "rank": 7}
    told = row("open", 40, 10, opened_at=5.0, retry_at=6.0, reopenings=1, probes_in_flight=1, window_slow=2)
    assert told == {
        "state": "open",
        "level": "open",
        "rank": 0,
        "opened_at": 5.0,
        "retry_at": 6.0,
        "reopenings": 1,
        "probes": 1,
        "window": 60.0,
        "calls": 40,
        "failures": 10,
        "slow": 2,
        "share": 0.25,
        "rate": 0.67,
    }


def test_a_sample_has_no_rate_of_calls():
    assert "rate" not in row(calls=40, failures=10, share_counted=0.01)
    assert row(calls=40, failures=10, share_counted=0.01)["share"] == 0.25


def test_why_has_no_secret_and_says_nothing_twice():
    why = row("open", reason=f"said no to {SECRET}", last_error=f"said no to {SECRET}")["why"]
    assert SECRET not in why
    assert why.count("said no") == 1
    assert "why" not in row(reason="it was closed by hand")


@pytest.mark.parametrize(
    ("counts", "said"),
    [
        ((0, 0, 0, 0), "No circuit has been called yet"),
        ((1, 0, 0, 0), "The only circuit is closed"),
        ((40, 0, 0, 0), "All 40 circuits are closed"),
        ((40, 2, 0, 0), "2 of 40 circuits open"),
        ((1, 1, 0, 0), "1 of 1 circuit open"),
        ((40, 2, 1, 3), "2 of 40 circuits open, 1 half-open, 3 disabled"),
        ((40, 0, 1, 0), "1 of 40 circuits half-open"),
    ],
)
def test_the_circuits_in_a_few_words(counts, said):
    assert circuits_headline(*counts) == said


@pytest.mark.parametrize(
    ("summary", "text", "level"),
    [
        ({}, "Nothing needs a person", "good"),
        (
            {"circuits": {"level": "good", "headline": "all closed"}},
            "Nothing needs a person",
            "good",
        ),
        ({"circuits": {"level": "probing", "headline": "1 half-open"}}, "Nothing needs a person", "probing"),
        ({"letters": {"waiting": 1}}, "1 dead letter to replay", "probing"),
        (
            {
                "circuits": {"level": "open", "open": 2, "headline": "2 of 3 circuits open"},
                "letters": {"waiting": 9},
            },
            "2 of 3 circuits open, 9 dead letters to replay",
            "open",
        ),
        (
            {
                "letters": {"waiting": 9_000, "in_doubt": 1, "more": True},
                "batches": {"effects": 2, "failed": 1},
                "budgets": {"burning": 1},
            },
            "2 effects in doubt to settle, 1+ interrupted replays to check, 1 failed batch to recover, "
            "9,000+ dead letters to replay, 1 error budget burning",
            "open",
        ),
    ],
)
def test_the_headline_says_what_needs_a_person(summary, text, level):
    assert headline(summary) == {"text": text, "level": level}


def test_the_summary_names_the_worst():
    rows = {f"c{n}": row("open", opened_at=float(n)) for n in range(5)}
    rows |= {"by hand": row("forced_open", opened_at=9.0), "well": row()}
    told = summary(rows)
    assert told["worst"] == ["c4", "c3", "c2"]
    assert (told["open"], told["total"], told["level"]) == (6, 7, "open")
    assert summary({"a": row("half_open")})["level"] == "probing"
    assert summary({"a": row("disabled")})["level"] == "good"
    assert summary({"a": row("forced_open")})["worst"] == ["a"]


def test_a_change_of_state_is_told_at_once_and_figures_when_it_is_their_turn():
    circuits = Circuits()
    first = circuits.read([("c", document(10))], NOW)["circuits"]["c"]
    assert first["calls"] == 10
    assert circuits.read([("c", document(20))], NOW + 0.5)["circuits"]["c"] is first
    opened = document(20, 5, state="open", retry_at=NOW + 2, opened_at=NOW, failures_in_row=5)
    read = circuits.read([("c", opened)], NOW + 0.6)
    assert (read["circuits"]["c"]["state"], read["circuits"]["c"]["calls"]) == ("open", 25)
    assert read["summary"]["circuits"]["headline"] == "1 of 1 circuit open"
    again = {**opened, "window": document(30, 5)["window"]}
    assert circuits.read([("c", again)], NOW + 1.0)["circuits"]["c"]["calls"] == 25
    assert circuits.read([("c", again)], NOW + 1.6)["circuits"]["c"]["calls"] == 35
    assert circuits.read([("c", again)], NOW + 1.9)["circuits"]["c"]["state"] == "open"
    assert circuits.read([("c", again)], NOW + 2.1)["circuits"]["c"]["state"] == "half_open"
    leased = {**again, "state": "half_open", "leases": {"me": [NOW, NOW + 60]}}
    assert circuits.read([("c", leased)], NOW + 2.2)["circuits"]["c"]["probes"] == 1


@pytest.mark.parametrize("value", [None, "open", {}, {"state": "no such"}, {"leases": 7, "retry_at": "soon"}])
def test_what_is_no_document_is_a_closed_circuit(value):
    read = Circuits().read([("c", value)], NOW)
    assert read["circuits"]["c"]["state"] == "closed"


def test_of_many_busy_circuits_at_most_200_rows_a_second_are_told():
    circuits, told = Circuits(), 0
    before = {}
    for tick in range(20):  # 10 seconds, read twice a second
        now = NOW + tick / 2
        read = circuits.read([(f"c{n:04}", document(tick + 1, at=now)) for n in range(600)], now)
        told += sum(before.get(name) is not one for name, one in read["circuits"].items())
        before = read["circuits"]
    assert told <= 600 + 200 * 10


def test_circuits_that_are_gone_are_forgotten_and_an_open_one_whose_time_came_probes():
    circuits = Circuits()
    opened = document(state="open", retry_at=NOW + 30, opened_at=NOW)
    read = circuits.read([("a", opened), ("b", document(3))], NOW + 31)
    assert read["circuits"]["a"]["state"] == "half_open"
    assert read["circuits"].keys() == {"a", "b"}
    assert circuits.read([("b", document(3))], NOW + 40)["circuits"].keys() == {"b"}
    assert circuits._known.keys() == {"b"}
