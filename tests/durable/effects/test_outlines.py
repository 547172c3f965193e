"""What a rollback undoes and what not, told from the ledger's documents and from its report."""

from __future__ import annotations

from typing import Any

import pytest

from prefect_resilience.durable.sagas.report import (
    Compensation,
    NotUndone,
    Outline,
    RollbackReport,
    outline_of,
    planned,
)


def effect(key: str, state: str, at: float, **more: Any) -> Any:
    return {"key": key, "state": state, "intended_at": at, "settled_at": at, **more}


UNDO: dict[str, Any] = {"call": "x"}


def test_what_is_to_be_undone_the_last_first_and_what_stays() -> None:
    effects = [
        effect("a", "done", 1.0, compensation=UNDO),
        effect("b", "done", 2.0, compensation=UNDO),
        effect("plain", "done", 3.0),
        effect("given-up", "done", 4.0, compensation={**UNDO, "given_up": "person: ada"}),
        effect("doubt", "unknown", 5.0),
        effect("asked", "unknown", 6.0, compensation={**UNDO, "verify": "y"}),
    ]
    plan = planned(effects, None)
    assert plan.undone == ("b", "a")
    assert not plan.complete
    assert {one.key: (one.how, one.why) for one in plan.not_undone} == {
        "plain": ("skipped", "it has no compensation"),
        "given-up": ("skipped", "its compensation was given up (person: ada)"),
        "doubt": ("in_doubt", "its outcome is unknown: there is no verify to ask"),
        "asked": ("in_doubt", "its outcome is unknown: verify is asked first"),
    }
    assert planned(effects, 1.0).undone == ("b",)
    assert planned(effects, 6.0) == Outline()


def test_what_a_report_says() -> None:
    def one(key: str, why: str = "") -> Compensation:
        return Compensation(key, None, None, None, 1, why)

    report = RollbackReport(
        "b",
        None,
        (one("now"),),
        (one("before"),),
        (one("f", "it raised"),),
        (one("d", "?"),),
        (one("s", "none"),),
    )
    outline = outline_of(report)
    assert outline.undone == ("before", "now")
    assert outline.not_undone == (
        NotUndone("f", "failed", "it raised"),
        NotUndone("d", "in_doubt", "?"),
        NotUndone("s", "skipped", "none"),
    )
    assert outline.complete is report.complete is False
    assert outline_of(RollbackReport("b", None, skipped=(one("s"),))).complete


@pytest.mark.parametrize(
    ("outline", "said"),
    [
        (Outline(), "there is nothing to compensate"),
        (Outline(("a",)), "compensated: 'a'"),
        (
            Outline((), (NotUndone("s", "skipped", "none"),)),
            "compensated: nothing; not compensated: 's' (none)",
        ),
    ],
)
def test_in_words(outline: Outline, said: str) -> None:
    assert outline.told() == said
