"""Circuits as rows: what is bad comes first, what is sent is bounded, the headline says it in a sentence."""

import pytest

from prefect_resilience.guards.circuits.model import CircuitSnapshot
from prefect_resilience.operations.dashboard.desk import headline
from prefect_resilience.operations.fleet_circuits import page_row

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
        row(calls=10, failures=1),
        row(calls=4, failures=4),
    ]
    assert [one["rank"] for one in ordered] == list(range(6))
    assert [one["level"] for one in ordered] == ["open", "open", "probing", "off", "failing", "good"]


def test_why_has_no_secret_and_says_nothing_twice():
    why = row("open", reason=f"said no to {SECRET}", last_error=f"said no to {SECRET}")["why"]
    assert SECRET not in why
    assert why.count("said no") == 1
    assert not row(reason="it was closed by hand")["why"]


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
