"""Circuits as rows: what is bad comes first, what is sent is bounded, the headline says it in a sentence."""

from __future__ import annotations

import pytest

from prefect_resilience.guards.circuits.model import CircuitSnapshot
from prefect_resilience.operations.circuit_rows import CircuitRows, page_row, summary
from prefect_resilience.operations.circuit_rows import headline as circuits_headline
from prefect_resilience.operations.dashboard.rows import headline

NOW = 1_000_000.0
SECRET = "sk-ant-api03-abcdefghijklmnopqrstuvwxyz0123456789"


def snapshot(state="closed", calls=0, failures=0, name="c", **fields):
    return CircuitSnapshot(name=name, state=state, window_calls=calls, window_failures=failures, **fields)


def row(*args, **fields):
    return page_row(snapshot(*args, **fields))


def test_the_worst_have_the_lowest_rank():
    ordered = [
        row("forced_open"),
        row("open"),
        row("half_open"),
        row("disabled"),
        row(calls=10, failures=5),
        row(calls=10, failures=3),
        row(calls=10, failures=1),
        row(calls=4, failures=4),
    ]
    assert [one["rank"] for one in ordered] == sorted({one["rank"] for one in ordered})
    assert [one["level"] for one in ordered] == [
        *("open", "open", "probing", "off"),
        *("failing", "failing", "failing", "good"),
    ]


def test_what_is_nothing_is_not_sent():
    assert row() == {"state": "closed", "level": "good", "rank": 7, "share": 0.0, "why": ""}
    opened = row("open", 40, 10, opened_at=5.0, retry_at=6.0, reopenings=1, window_slow=2)
    assert opened == {
        **{"state": "open", "level": "open", "rank": 1, "share": 0.25, "why": ""},
        **{"opened_at": 5.0, "retry_at": 6.0, "window_calls": 40},
    }


def test_why_has_no_secret_and_says_nothing_twice():
    why = row("open", reason=f"said no to {SECRET}", last_error=f"said no to {SECRET}")["why"]
    assert SECRET not in why
    assert why.count("said no") == 1
    assert not row(reason="it was closed by hand")["why"]


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
    total, *numbers = counts
    names = ("open", "half_open", "disabled")
    assert circuits_headline(total, dict(zip(names, numbers, strict=True))) == said


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
    counts = summary(rows)
    assert counts["worst"] == ["by hand", "c4", "c3"]
    assert (counts["open"], counts["total"], counts["level"]) == (6, 7, "open")
    assert summary({"a": row("half_open")})["level"] == "probing"
    assert summary({"a": row("disabled")})["level"] == "good"
    assert summary({"a": row("forced_open")})["worst"] == ["a"]


def test_a_change_of_state_is_shown_at_once_and_figures_when_they_are_due():
    rows = CircuitRows()

    def calls(at, *args, **fields):
        return rows.read([snapshot(*args, **fields)], NOW + at)["c"].get("window_calls")

    assert [calls(0, calls=10), calls(0.5, calls=20), calls(1.1, calls=20)] == [10, 10, 20]
    opened = {"state": "open", "retry_at": NOW + 9}
    assert [calls(1.2, calls=25, **opened), calls(1.5, calls=35, **opened)] == [25, 25]
    assert calls(1.6, calls=35, probes_in_flight=1, **opened) == 35


def test_of_many_busy_circuits_at_most_200_rows_a_second_are_sent():
    rows, sent, before = CircuitRows(), 0, {}
    for tick in range(20):  # 10 seconds, read twice a second
        read = rows.read([snapshot(name=f"c{n:04}", calls=tick + 1) for n in range(600)], NOW + tick / 2)
        sent += sum(before.get(name) is not one for name, one in read.items())
        before = read
    assert sent <= 600 + 200 * 10


def test_circuits_that_are_gone_are_forgotten():
    rows = CircuitRows()
    assert rows.read([snapshot(name="a"), snapshot(name="b")], NOW).keys() == {"a", "b"}
    assert rows.read([snapshot(name="b")], NOW + 40).keys() == {"b"}
