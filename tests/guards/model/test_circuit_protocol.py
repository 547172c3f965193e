"""Small sizes of the protocol, to the last state; and faults put into it, to see that they are found."""

from typing import Any

import pytest

from prefect_resilience.guards.circuits import machine
from tests.guards.model.explore import NEVER_STUCK, explore, told
from tests.guards.model.states import BASE, Setup, to_doc, to_document

pytestmark = [pytest.mark.no_cover, pytest.mark.slow]

A_MINUTE_OR_MORE = [pytest.mark.long, pytest.mark.timeout(900)]


def large(setup: Setup) -> Any:
    return pytest.param(setup, marks=A_MINUTE_OR_MORE)


@pytest.mark.parametrize(
    "setup",
    [
        Setup(coarse=True),
        Setup(coarse=True, probe_calls=2),
        Setup(coarse=True, news=True),
        large(Setup(coarse=True, news=True, probes=2)),
        large(Setup(coarse=True, probes=2, failure_threshold=2)),
        large(Setup(coarse=True, success_threshold=2)),
        large(Setup(coarse=True, skew=1, probe_lease=3)),
    ],
    ids=str,
)
def test_every_state_keeps_every_property(setup: Setup) -> None:
    found = explore(setup)
    assert found.wrong is None, told(found)
    assert found.states > 1000
    assert found.depth > 20


@pytest.mark.parametrize(
    ("broken", "wrong"),
    [
        ("no version check", "a result from before the last change of state was counted"),
        ("no generation fence", "a result from before the last change of state was counted"),
        ("no lease expiry", f"not {NEVER_STUCK}"),
    ],
)
def test_a_broken_protocol_is_caught_with_the_way_there(broken: str, wrong: str) -> None:
    found = explore(Setup(broken=broken, coarse=True))
    assert found.wrong == wrong
    lines = told(found).splitlines()
    assert lines[0] == f"{wrong} with {broken}:"
    assert "at first" in lines[1]
    assert len(lines) == len(found.trace) + 1 > 5
    print("\n".join(lines))


def test_the_model_s_documents_are_the_machine_s() -> None:
    policy = Setup(failure_threshold=2, probe_lease=4).policy
    document = machine.new()
    for event in (machine.Record(1, (("f", 1),)), machine.Record(1, (("f", 1),))):
        document, _ = machine.step(document, event, BASE, policy)
        assert machine.read(to_document(to_doc(document, BASE), 2)) == to_document(to_doc(document, BASE), 2)
        assert to_doc(to_document(to_doc(document, BASE), 2), BASE) == to_doc(document, BASE)
    document, _ = machine.step(document, machine.Acquire("somebody"), BASE + 9, policy)
    assert to_doc(document, BASE + 9).leases == (("somebody", 0, 4),)
