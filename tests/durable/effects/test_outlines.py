"""What a rollback undoes and what not, told from the ledger's documents and from its report."""

from __future__ import annotations

from typing import Any

from prefect_resilience.durable.sagas.report import (
    Compensation,
    NotUndone,
    RollbackReport,
    in_words,
    not_undone,
    plan_rollback,
)
from prefect_resilience.durable.sagas.undo import to_undo

UNDO: dict[str, Any] = {"call": {"module": "m", "qualname": "undo"}}


def effect(key: str, state: str, at: float, **more: Any) -> Any:
    return {"key": key, "state": state, "intended_at": at, "settled_at": at, "external_id": None, **more}


def test_what_is_to_be_undone_the_last_first_and_what_stays() -> None:
    effects = [
        effect("a", "done", 1.0, compensation=UNDO),
        effect("b", "done", 2.0, compensation=UNDO),
        effect("plain", "done", 3.0),
        effect("given-up", "done", 4.0, compensation={**UNDO, "given_up": "person: ada"}),
        effect("doubt", "unknown", 5.0),
        effect("asked", "unknown", 6.0, compensation={**UNDO, "verify": "y"}),
    ]
    plan = plan_rollback("b", None, to_undo(effects, None))
    assert [(one.key, one.function) for one in plan.compensated] == [("b", "m:undo"), ("a", "m:undo")]
    assert not plan.complete
    assert {one.key: (one.how, one.why) for one in not_undone(plan)} == {
        "plain": ("skipped", "it has no compensation"),
        "given-up": ("skipped", "its compensation was given up (person: ada)"),
        "doubt": ("in_doubt", "its outcome is unknown: there is no verify to ask"),
        "asked": ("in_doubt", "its outcome is unknown: verify is asked first"),
    }
    assert [one.key for one in plan_rollback("b", None, to_undo(effects, 1.0)).compensated] == ["b"]
    assert plan_rollback("b", "to", to_undo(effects, 6.0)) == RollbackReport("b", "to")


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
    assert not_undone(report) == (
        NotUndone("f", "failed", "it raised"),
        NotUndone("d", "in_doubt", "?"),
        NotUndone("s", "skipped", "none"),
    )
    assert in_words(report) == (
        "compensated: 'before', 'now'; not compensated: 'f' (it raised), 'd' (?), 's' (none)"
    )
    assert not report.complete
    assert RollbackReport("b", None, skipped=(one("s"),)).complete
