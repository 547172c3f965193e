"""A person says what becomes of an effect that could not be undone; the others are undone all the same."""

from __future__ import annotations

from typing import Any

import pytest
from prefect import flow

from prefect_resilience import ConfigurationError, InDoubt, NotSent, resilient_task
from prefect_resilience.effects import Effect, batch, batch_status, rollback, settle
from prefect_resilience.errors.exceptions import ResultNotKept
from tests.durable.effects import saga_parts
from tests.durable.effects.receiver import Receiver

pytestmark = [pytest.mark.api, pytest.mark.usefixtures("saga")]


@flow
def orders(*numbers: int) -> list[Any]:
    with batch("b"):
        return [saga_parts.send(number, return_state=True) for number in numbers]


def rolled_back(**troubles: Exception) -> Any:
    """Three orders, rolled back while the compensations of some raise."""
    orders(1, 2, 3)
    saga_parts.troubles.update({number[1:]: [error] for number, error in troubles.items()})
    return rollback("b")


def test_one_that_cannot_be_undone_is_kept_and_the_others_stay_undone(shared: str) -> None:
    report = rolled_back(_2=NotSent("no"))
    assert [one.key for one in report.failed] == ["order:2"]
    assert saga_parts.states("b") == {"order:1": "compensated", "order:2": "done", "order:3": "compensated"}
    after = settle("b", "order:2", "kept", by="ada", reason="the hotel does not refund")
    assert (after.state, after.result) == ("done", "m-order:2")
    before = len(saga_parts.calls)
    report = rollback("b")
    assert report.complete
    assert [(one.key, one.why) for one in report.skipped] == [
        ("order:2", "its compensation was given up (person: ada)")
    ]
    assert len(saga_parts.calls) == before, "nothing is called any more"
    audit = batch_status("b").audit
    assert (audit[-1].by, audit[-1].outcome) == ("ada", "settled")
    assert "and is not compensated" in audit[-1].why
    # What is kept is done for later runs of the batch, and the others are new effects.
    assert [state.name for state in orders(1, 2)] == ["Completed", "Replayed"]


@pytest.mark.parametrize(("answer", "after"), [("undone", "compensated"), ("kept", "done")])
def test_a_compensation_in_doubt_is_settled_with_its_effect(answer: Any, after: str, shared: str) -> None:
    report = rolled_back(_2=TimeoutError("no answer"))
    assert "whether the effect is compensated is unknown" in report.failed[0].why
    hint = batch_status("b").hint
    assert hint is not None
    assert set(hint.waiting) == {"order:2", "compensate:order:2"}
    with pytest.raises(ConfigurationError, match="answer `undone` or `kept`"):
        settle("b", "order:2", "done")
    assert settle("b", "order:2", answer).state == after
    assert saga_parts.states("b") == {"order:1": "compensated", "order:2": after, "order:3": "compensated"}
    assert all(one.state != "unknown" for one in batch_status("b").effects)
    assert rollback("b").complete
    assert [call[1] for call in saga_parts.calls if call[0] == "undo"] == [3, 2, 1]


def test_mistakes(shared: str, receiver: Receiver, post: Any) -> None:
    @resilient_task(effect=Effect(key="plain"))
    def plain() -> str:
        return post()

    @flow
    def scenario() -> None:
        with batch("b"):
            plain()

    scenario()
    with pytest.raises(ConfigurationError, match="has no compensation: "):
        settle("b", "plain", "kept")
    with pytest.raises(ConfigurationError, match="only for the answer 'done'"):
        settle("b", "plain", "undone", result=1)
    with pytest.raises(ConfigurationError, match="unknown answer"):
        settle("b", "plain", "keep")  # type: ignore[arg-type]


def test_kept_is_refused_where_the_compensation_took_place(shared: str, monkeypatch: Any) -> None:
    """A rollback that was cut off after the compensation was done, and before that was written down."""
    from prefect_resilience.durable.sagas.edge import saga

    orders(1)
    with monkeypatch.context() as cut_off:
        cut_off.setattr(saga.undo, "end_compensation", lambda document, now, **_: document)
        rollback("b")
    assert saga_parts.states("b") == {"order:1": "compensating"}
    with pytest.raises(ConfigurationError, match=r"took place: call rollback"):
        settle("b", "order:1", "kept")
    assert [one.key for one in rollback("b").already] == ["order:1"]


# -- what a person says that a function returned


def doubtful(returns: Any, **options: Any) -> Any:
    """A task whose outcome is unknown, and that returns this type."""

    def send() -> Any:
        raise TimeoutError("no answer")

    send.__annotations__["return"] = returns
    task = resilient_task(effect=Effect(**{"key": "k", **options}), retry=None)(send)

    @flow
    def scenario() -> list[Any]:
        with batch("b"):
            return [task(return_state=True)]

    first = scenario()[0]
    if "verify" not in options:
        with pytest.raises(InDoubt):
            first.result()
    return lambda: scenario()[0]


def test_one_that_does_not_fit_can_be_given_once_more(shared: str) -> None:
    run = doubtful(saga_parts.Receipt)
    settle("b", "k", "done", {"ordre": 7})
    with pytest.raises(ResultNotKept, match="no longer fits the function's return type"):
        run().result()
    assert settle("b", "k", "done", {"order": 7, "total": "b"}, "id-7").external_id == "id-7"
    assert run().result() == saga_parts.Receipt(order=7, total=b"b")
    with pytest.raises(ConfigurationError, match="nothing to settle"):
        settle("b", "k", "not_done")
