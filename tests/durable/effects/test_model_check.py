"""The ledger's protocol, explored exhaustively for small sizes: nothing external is received twice, no
success was never received, and every asker comes to an end (see `ledger_protocol.py`).

The sizes: two or three askers in two processes and two passes, two attempts each (three in one setup), one
kill (two in one setup), one lapsed lease, one loss of the ledger.
"""

from __future__ import annotations

from typing import Any

import pytest

from prefect_resilience.durable.effects.policy import Done
from tests.durable.effects import ledger_protocol
from tests.durable.effects.ledger_protocol import Place, Setup
from tests.durable.effects.ledger_search import Found, explore

pytestmark = [pytest.mark.no_cover, pytest.mark.slow]

FIRST, TWIN = Place(0, 1, "first"), Place(1, 1, "twin")
LATER, AGAIN = Place(1, 2, "later"), Place(0, 2, "again")


def explored(*askers: Place, **how: Any) -> Found:
    return explore(Setup(askers, **how))


@pytest.mark.requirement("004.10")
@pytest.mark.parametrize("verify", [False, True])
@pytest.mark.parametrize(
    ("askers", "how"),
    [
        ((FIRST, LATER), {"loss": "all", "late_counts": True}),
        ((FIRST, LATER), {"loss": "effect"}),
        ((FIRST, AGAIN), {"loss": "effect"}),
        ((FIRST, LATER), {"lapses": 1, "kills": 0}),
        ((FIRST, LATER), {"attempts": 3}),
        ((FIRST, TWIN), {}),
        ((FIRST, TWIN, LATER), {"attempts": 1, "kills": 0}),
    ],
    ids=str,
)
def test_an_external_effect_is_received_once_or_a_person_is_told(askers, how, verify):
    found = explored(*askers, verify=verify, **how)
    assert found.wrong is None, found
    assert found.states > 3_000
    assert {"sent", "replayed", "InDoubt", "failed"} <= found.ends
    assert ("NotRecorded" in found.ends) == ("loss" in how)
    assert ("RepeatedEffect" in found.ends) == (TWIN in askers)


def test_three_askers_two_kills_and_a_loss():
    found = explored(FIRST, LATER, AGAIN, attempts=1, kills=2, loss="effect")
    assert found.wrong is None, found
    assert {"RepeatedEffect", "NotRecorded", "InDoubt"} <= found.ends


@pytest.mark.parametrize("kind", ["conditional", "idempotent"])
@pytest.mark.parametrize("verify", [False, True])
def test_what_may_be_done_again_always_comes_to_an_end(kind, verify):
    found = explored(FIRST, LATER, kind=kind, verify=verify)
    assert found.wrong is None, found
    assert found.ends == {"sent", "replayed", "failed", "EffectBusy", "killed"}


# -- what the laws rest on: without it, the model finds the mistake


def test_without_the_waiting_rule_an_overdue_call_is_sent_beside():
    """The receiver says truly that it has nothing, and then the call arrives that was on its way."""
    found = explored(FIRST, LATER, verify=True, waits=False)
    assert found.wrong == "received twice"
    assert found.trace[-1].startswith("the overdue")
    assert any("is answered" in step for step in found.trace)


def test_without_verify_nobody_asks_too_early():
    """There the rule decides how soon a person is told, not whether the effect is sent twice."""
    assert explored(FIRST, LATER, waits=False).wrong is None


@pytest.mark.parametrize("verify", [False, True])
def test_what_a_batch_has_not_counted_yet_may_be_forgotten(verify):
    """The count follows within a second; killed within it, one effect that is lost alone is not missed."""
    found = explored(FIRST, LATER, verify=verify, loss="effect", late_counts=True)
    assert found.wrong == "received twice"
    assert any("killed" in step for step in found.trace)


@pytest.mark.parametrize("verify", [False, True])
def test_a_loss_is_seen_when_a_batch_is_opened_and_not_while_it_is_open(verify):
    found = explored(FIRST, LATER, verify=verify, loss="all", lost_while_open=True)
    assert found.wrong == "received twice"
    opened = [step for step in found.trace if "opens the batch" in step]
    assert found.trace.index("the ledger forgets") > found.trace.index(opened[-1])


def test_the_first_pass_does_not_ask_for_the_mark():
    """One pass asks for a key once, so this takes a repeated key, in two processes, around a loss."""
    found = explored(FIRST, TWIN, loss="all", attempts=1)
    assert found.wrong == "received twice"
    assert not explored(FIRST, TWIN, attempts=1).wrong


def test_the_laws_see_a_success_that_was_never_received(monkeypatch):
    ledger_protocol._decide_once.cache_clear()
    monkeypatch.setattr(ledger_protocol, "NotDone", lambda: Done(1))
    found = explored(FIRST, LATER, verify=True)
    assert found.wrong == "a success that was never received"
