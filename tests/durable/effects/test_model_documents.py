"""One effect to the letter: the whole document after each event, and what whoever brought it is told."""

from __future__ import annotations

from typing import Any

import pytest

from prefect_resilience.durable.effects.model import (
    AlreadyDone,
    Ask,
    Asker,
    Doubted,
    Event,
    FailedCall,
    InProgress,
    Intend,
    LookUp,
    Overdue,
    Recorded,
    Repeated,
    Reused,
    Send,
    Succeeded,
    Undoing,
    Verified,
    decide,
    generation_of,
)
from prefect_resilience.durable.effects.policy import Done, NotDone

ERROR = {"code": "TIMEOUT", "message": "read timeout"}
OLD_ERROR = {"code": "REFUSED", "message": "no route"}
OWNER_DIED = {
    "code": "OWNER_DIED",
    "message": "the process that made the call ended, or fell silent, before it recorded the outcome",
}
PACKED = {"as": "json", "value": 7}

INTENDED = {
    "key": "invoice:1",
    "task": "send",
    "task_run_id": "run-a",
    "kind": "conditional",
    "state": "intended",
    "generation": 1,
    "owner": "anna",
    "claim": "c1",
    "attempts": 1,
    "counted": True,
    "runs": ["run-a"],
    "result": None,
    "external_id": None,
    "error": None,
    "verified_by": None,
    "first_at": 10.0,
    "intended_at": 10.0,
    "overdue_at": None,
    "settled_at": None,
}

DONE = INTENDED | {"state": "done", "result": PACKED, "external_id": "m7", "settled_at": 11.0}
FAILED = INTENDED | {"state": "failed", "error": OLD_ERROR, "settled_at": 11.0}
UNKNOWN = INTENDED | {"state": "unknown", "error": OLD_ERROR, "settled_at": 11.0}
COMPENSATION = {"name": "shop:refund", "claim": "r1", "owner": None, "error": None, "at": 12.0}
COMPENSATING = DONE | {"state": "compensating", "compensation": COMPENSATION}
COMPENSATED = DONE | {"state": "compensated", "compensation": COMPENSATION}
STUCK = COMPENSATING | {"compensation": COMPENSATION | {"error": ERROR}}
NEVER_TRIED = COMPENSATING | {"compensation": {"name": "shop:refund"}}

# What they become at 20.0
DONE_NOW = DONE | {"settled_at": 20.0}
OWNER_GONE = INTENDED | {"state": "unknown", "settled_at": 20.0, "error": OWNER_DIED}


def of_generation(document: dict[str, Any], generation: int) -> dict[str, Any]:
    return document | {"generation": generation}


def of_old(document: dict[str, Any]) -> dict[str, Any]:
    """A document from before there were generations."""
    return {key: value for key, value in document.items() if key != "generation"}


def ended_now(state: str, error: Any = None, **more: Any) -> dict[str, Any]:
    return INTENDED | {"state": state, "error": error, "settled_at": 20.0, **more}


ABOUT = {"key": "invoice:1", "task": "send", "task_run_id": "run-a"}
SENT_AGAIN = INTENDED | {
    "kind": "external",
    "owner": "ben",
    "claim": "c2",
    "attempts": 2,
    "counted": True,
    "runs": ["run-a", "run-b"],
    "task_run_id": "run-b",
    "intended_at": 20.0,
}
UNKNOWN_BEFORE = Send(1, known=False)
REPLAYED = AlreadyDone(PACKED, "m7")
SUCCEEDED = Succeeded("c1", PACKED, "m7")
TOLD_LATE = Succeeded("c1", {"as": "json", "value": 8}, "m8")
INTERRUPTED = Undoing("its rollback was interrupted: rollback() finishes it")
ENDED_SO = Undoing("its compensation failed with TIMEOUT: read timeout")


def anna(**more: Any) -> Intend:
    return Intend("anna", "c1", False, kind="conditional", about=ABOUT, **more)


def ben(*, alive: bool = False, **more: Any) -> Intend:
    return Intend("ben", "c2", alive, about=ABOUT | {"task_run_id": "run-b"}, **more)


INSISTING = ben(alive=True, despite_doubt=True)
LATE = INTENDED | {"overdue_at": 20.0}
LATE_GONE = OWNER_GONE | {"overdue_at": 20.0}
LATE_DONE = DONE | {"overdue_at": 20.0, "settled_at": 20.0}
FIRST_PASS, SAME_PASS = Asker("run-a", (("f", 1),)), Asker("run-b", (("f", 1), ("t", 1)))
SECOND_PASS = Asker("run-b", (("f", 2),))
DONE_FIRST = DONE | {"asked": {"run": "run-a", "pass": [["f", 1]]}}
ASKED_AGAIN = {"asked": {"run": "run-b", "pass": [["f", 2]]}}
RECIPE = {"task": "send", "template": None, "names": [], "args": {}}
OF_RECIPE = INTENDED | {"recipe": RECIPE}
OTHER_TASK = Asker("run-b", (("f", 2),), RECIPE | {"task": "post"}, ("post",))

NO_ID_NOW = DONE_NOW | {"external_id": None}
VERIFIED = DONE_NOW | {"verified_by": "verify"}
DENIAL = Verified("c1", NotDone(), by="carla")
CARLA_SAYS_SO = Verified("c1", Done(PACKED), by="carla")
SAID_BY_CARLA = NO_ID_NOW | {"verified_by": "carla"}
DENIED_BY_CARLA = ended_now("failed", OLD_ERROR, verified_by="carla")
ASKED = UNKNOWN | {"asked": DONE_FIRST["asked"]}
SAME_ASKS = Verified("c1", Done(PACKED, "m7"), asker=SAME_PASS)
ASKED_DONE = VERIFIED | {"asked": DONE_FIRST["asked"]}

THIRD, FOURTH = of_generation(SENT_AGAIN, 3), of_generation(SENT_AGAIN, 4)
THIRD_UNKNOWN, THIRD_DENIED = of_generation(UNKNOWN, 3), of_generation(DENIED_BY_CARLA, 3)

CASES: list[tuple[str, Any, Event, Any, Any]] = [
    # how things stand
    ("looked at before anybody", None, LookUp(False), None, UNKNOWN_BEFORE),
    ("looked at while it is sent", INTENDED, LookUp(True), INTENDED, InProgress()),
    ("looked at when its owner died", INTENDED, LookUp(False), OWNER_GONE, Ask("c1", OWNER_DIED, 1)),
    ("looked at when done", DONE, LookUp(False), DONE, REPLAYED),
    ("looked at when failed", FAILED, LookUp(True), FAILED, Send(1)),
    ("looked at when unknown", UNKNOWN, LookUp(True), UNKNOWN, Ask("c1", OLD_ERROR)),
    ("looked at while it is undone", COMPENSATING, LookUp(True), COMPENSATING, InProgress()),
    ("looked at when a rollback died", COMPENSATING, LookUp(False), COMPENSATING, INTERRUPTED),
    ("looked at when no rollback came to it", NEVER_TRIED, LookUp(False), NEVER_TRIED, INTERRUPTED),
    ("looked at when its compensation is open", STUCK, LookUp(False), STUCK, ENDED_SO),
    ("looked at when undone", COMPENSATED, LookUp(True), COMPENSATED, Send(2)),
    # somebody is about to make the call
    (
        "intended first",
        None,
        anna(),
        INTENDED | {"first_at": 20.0, "intended_at": 20.0, "counted": False},
        UNKNOWN_BEFORE,
    ),
    ("intended while it is sent", INTENDED, ben(alive=True), INTENDED, InProgress()),
    ("intended when its owner died", INTENDED, ben(), OWNER_GONE, Ask("c1", OWNER_DIED, 1)),
    ("intended despite the owner's death", INTENDED, ben(despite_doubt=True), SENT_AGAIN, Send(1)),
    ("never intended despite a live owner", INTENDED, INSISTING, INTENDED, InProgress()),
    ("intended when done", DONE, ben(despite_doubt=True), DONE, REPLAYED),
    ("intended when failed", FAILED, ben(), SENT_AGAIN, Send(1)),
    ("intended when unknown", UNKNOWN, ben(), UNKNOWN, Ask("c1", OLD_ERROR, 1)),
    ("intended despite the doubt", UNKNOWN, ben(despite_doubt=True), SENT_AGAIN, Send(1)),
    ("intended while it is undone", COMPENSATING, INSISTING, COMPENSATING, InProgress()),
    ("intended when a rollback died", COMPENSATING, ben(despite_doubt=True), COMPENSATING, INTERRUPTED),
    ("intended anew when undone", COMPENSATED, ben(), SENT_AGAIN | {"generation": 2}, Send(2)),
    # its owner tells
    ("succeeded without a document", None, TOLD_LATE, None, Recorded(False)),
    ("succeeded", INTENDED, SUCCEEDED, DONE_NOW, Recorded(True)),
    ("succeeded without an id", INTENDED, Succeeded("c1", PACKED), NO_ID_NOW, Recorded(True)),
    ("succeeded though unknown", UNKNOWN, SUCCEEDED, DONE_NOW, Recorded(True)),
    ("succeeded though failed", FAILED, SUCCEEDED, DONE_NOW, Recorded(True)),
    ("succeeded twice", DONE, TOLD_LATE, DONE, Recorded(True)),
    ("succeeded while it is undone", COMPENSATING, TOLD_LATE, COMPENSATING, Recorded(True)),
    ("succeeded when undone", COMPENSATED, TOLD_LATE, COMPENSATED, Recorded(True)),
    ("failed", INTENDED, FailedCall("c1", ERROR), ended_now("failed", ERROR), Recorded(True)),
    ("failed though unknown, no error", UNKNOWN, FailedCall("c1"), ended_now("failed"), Recorded(True)),
    ("failed twice", FAILED, FailedCall("c1", ERROR), FAILED, Recorded(True)),
    ("failed though done", DONE, FailedCall("c1", ERROR), DONE, Recorded(False)),
    ("failed while it is undone", COMPENSATING, FailedCall("c1", ERROR), COMPENSATING, Recorded(False)),
    ("failed when undone", COMPENSATED, FailedCall("c1", ERROR), COMPENSATED, Recorded(False)),
    ("doubted", INTENDED, Doubted("c1", ERROR), ended_now("unknown", ERROR), Recorded(True)),
    ("doubted again, no error", UNKNOWN, Doubted("c1"), ended_now("unknown"), Recorded(True)),
    ("doubted though failed", FAILED, Doubted("c1", ERROR), FAILED, Recorded(False)),
    ("doubted though done", DONE, Doubted("c1", ERROR), DONE, Recorded(False)),
    ("succeeded under another claim", INTENDED, Succeeded("c9", 1), INTENDED, Recorded(False)),
    ("failed under another claim", INTENDED, FailedCall("c9", ERROR), INTENDED, Recorded(False)),
    ("doubted under another claim", UNKNOWN, Doubted("c9", ERROR), UNKNOWN, Recorded(False)),
    # its attempt is over, its call goes on
    ("overdue", INTENDED, Overdue("c1"), LATE, Recorded(True)),
    ("overdue under another claim", INTENDED, Overdue("c9"), INTENDED, Recorded(False)),
    ("overdue when done", DONE, Overdue("c1"), DONE, Recorded(False)),
    ("overdue without a document", None, Overdue("c1"), None, Recorded(False)),
    ("looked at while overdue", LATE, LookUp(True), LATE, InProgress(20.0)),
    ("answered while overdue", LATE, Verified("c1", NotDone()), LATE, InProgress(20.0)),
    ("succeeded though overdue", LATE, SUCCEEDED, LATE_DONE, Recorded(True)),
    ("failed without a document", None, FailedCall("c1"), None, Recorded(False)),
    ("intended again while overdue", LATE, INSISTING, LATE, InProgress(20.0)),
    ("doubted though overdue", LATE, Doubted("c1"), ended_now("unknown", overdue_at=20.0), Recorded(True)),
    ("looked at when overdue and its owner died", LATE, LookUp(False), LATE_GONE, Ask("c1", OWNER_DIED, 1)),
    ("intended again after it was overdue", FAILED | {"overdue_at": 15.0}, ben(), SENT_AGAIN, Send(1)),
    # who asks
    ("replayed for a run", DONE, LookUp(False, SECOND_PASS), DONE | ASKED_AGAIN, REPLAYED),
    ("replayed by way of an intention", DONE, ben(asker=SECOND_PASS), DONE | ASKED_AGAIN, REPLAYED),
    ("replayed for the run that asked last", DONE_FIRST, LookUp(False, FIRST_PASS), DONE_FIRST, REPLAYED),
    ("asked for again in one pass", DONE_FIRST, LookUp(False, SAME_PASS), DONE_FIRST, Repeated("run-a")),
    ("intended by a run", FAILED, ben(asker=SECOND_PASS), SENT_AGAIN | ASKED_AGAIN, Send(1)),
    ("of another task", OF_RECIPE, LookUp(True, OTHER_TASK), OF_RECIPE, Reused(RECIPE, "task", False)),
    ("answered to a pass that has asked before", ASKED, SAME_ASKS, ASKED_DONE, Repeated("run-a")),
    # the receiver or a person answers
    ("answered without a document", None, Verified("c1", NotDone()), None, UNKNOWN_BEFORE),
    ("answered: done", UNKNOWN, Verified("c1", Done(PACKED, "m7")), VERIFIED, REPLAYED),
    ("answered by a person: done", UNKNOWN, CARLA_SAYS_SO, SAID_BY_CARLA, AlreadyDone(PACKED, None)),
    ("answered: not done", UNKNOWN, DENIAL, DENIED_BY_CARLA, Send(1)),
    ("answered for another claim", UNKNOWN, Verified("c9", NotDone()), UNKNOWN, Ask("c1", OLD_ERROR, 1)),
    ("answered while it is sent", INTENDED, Verified("c1", Done(PACKED)), INTENDED, InProgress()),
    ("answered when done", DONE, Verified("c1", NotDone()), DONE, REPLAYED),
    ("answered when failed", FAILED, Verified("c1", Done(PACKED)), FAILED, Send(1)),
    ("answered while it is undone", COMPENSATING, Verified("c1", NotDone()), COMPENSATING, InProgress()),
    ("intended anew when undone again", of_generation(COMPENSATED, 3), ben(), FOURTH, Send(4)),
    ("intended again in its generation", of_generation(FAILED, 3), ben(), THIRD, Send(3)),
    ("intended again without one", of_old(FAILED), ben(), SENT_AGAIN, Send(1)),
    ("looked at in its generation", THIRD_UNKNOWN, LookUp(True), THIRD_UNKNOWN, Ask("c1", OLD_ERROR, 3)),
    ("answered in its generation", THIRD_UNKNOWN, DENIAL, THIRD_DENIED, Send(3)),
    ("answered when undone", COMPENSATED, Verified("c1", Done(PACKED)), COMPENSATED, Send(2)),
]


@pytest.mark.parametrize(
    ("before", "event", "after", "told"),
    [pytest.param(*case, id=name) for name, *case in CASES],
)
def test_what_an_event_makes_of_an_effect(before: Any, event: Event, after: Any, told: Any) -> None:
    assert decide(before, event, 20.0) == (after, told)


def test_a_generation_begins_when_what_was_done_is_undone() -> None:
    assert generation_of(None) == 1
    for document in (INTENDED, DONE, FAILED, UNKNOWN, COMPENSATING):
        assert [generation_of(of_generation(document, number)) for number in (1, 2, 5)] == [1, 2, 5]
        assert generation_of(of_old(document)) == 1
    assert [generation_of(of_generation(COMPENSATED, number)) for number in (1, 2, 5)] == [2, 3, 6]
    assert generation_of(of_old(COMPENSATED)) == 2
