"""What holds of the machine whatever happens to it."""

import copy
import json
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from prefect_resilience.guards.circuits.machine import (
    Acquire,
    Event,
    Force,
    Record,
    Release,
    Reset,
    Tick,
    Transition,
    new,
    read,
    step,
)
from prefect_resilience.guards.circuits.model import CircuitPolicy
from tests.guards.circuits.bench import refusal

pytestmark = [pytest.mark.no_cover, pytest.mark.slow]

policies = st.builds(
    CircuitPolicy,
    adaptive=st.booleans(),
    failure_threshold=st.integers(1, 6),
    volume_threshold=st.integers(1, 12),
    failure_rate=st.sampled_from([0.1, 0.5, 1.0]),
    minimum_calls=st.integers(1, 12),
    window=st.sampled_from(["10s", "60s", 1, 5, 20]),
    slow_call=st.sampled_from([None, 1.0]),
    slow_rate=st.sampled_from([0.3, 1.0]),
    open_for=st.sampled_from([0.0, 5.0, 30.0]),
    open_backoff=st.sampled_from([1.0, 2.0, 1000.0]),
    open_max=st.sampled_from([10.0, 600.0]),
    success_threshold=st.integers(1, 4),
    probes=st.integers(1, 3),
    probe_lease=st.sampled_from([1.0, 60.0]),
)
runs = st.lists(st.tuples(st.sampled_from("sfSF"), st.integers(0, 8)), max_size=4).map(tuple)
pauses = st.none() | st.sampled_from([0.0, 1.0, 1000.0, 1e9])
owners = st.sampled_from([f"owner-{n}" for n in range(6)])


class Circuit(RuleBasedStateMachine):
    """A fleet of six owners, a service that answers anything, hands that do anything, a clock that jumps."""

    def __init__(self) -> None:
        super().__init__()
        self.policy = CircuitPolicy()
        self.document = new()
        self.now = 1_000_000.0
        self.begun: list[tuple[int, str]] = []

    @rule(policy=policies)
    def deploys(self, policy: CircuitPolicy) -> None:
        # Fewer probes than there are leases is the one thing that only time mends.
        if len(self.document["leases"]) <= policy.probes:
            self.policy = policy

    @rule(seconds=st.sampled_from([0.0, 0.1, 1.0, 5.0, 31.0, 700.0, 1e5]))
    def time_passes(self, seconds: float) -> None:
        self.now += seconds
        self.happens(Tick())

    @rule(seconds=st.sampled_from([1.0, 1e5]))
    def the_clock_is_set_back(self, seconds: float) -> None:
        self.now -= seconds
        self.happens(Tick())

    @rule(owner=owners)
    def asks(self, owner: str) -> None:
        self.happens(Acquire(owner))
        if refusal(self.document, owner, self.now) is None:
            self.begun.append((self.document["generation"], owner))

    @precondition(lambda self: self.begun)
    @rule(data=st.data(), runs=runs, pause=pauses)
    def a_call_ends(self, data: Any, runs: Any, pause: float | None) -> None:
        generation, owner = data.draw(st.sampled_from(self.begun))
        before = self.document
        changes = self.happens(Record(generation, runs, "it failed", pause, owner))
        if generation != before["generation"]:
            # The fence: nothing but its lease is touched.
            assert changes == ()
            same = {key: self.document[key] for key in ("state", "generation", "successes", "window")}
            assert same == {key: before[key] for key in same}

    @rule(owner=owners)
    def gives_back(self, owner: str) -> None:
        state = self.document["state"]
        assert self.happens(Release(owner)) == ()
        assert self.document["state"] == state

    @rule(
        state=st.sampled_from(["forced_open", "closed", "disabled"]), until=st.none() | st.floats(-100, 1000)
    )
    def somebody_forces(self, state: Any, until: float | None) -> None:
        self.happens(Force(state, "by hand", None if until is None else self.now + until))

    @rule()
    def somebody_resets(self) -> None:
        self.happens(Reset())
        assert self.document["state"] == "closed"

    def happens(self, event: Event) -> tuple[Transition, ...]:
        before = copy.deepcopy(self.document)
        after, changes = step(self.document, event, self.now, self.policy)
        again, changes_again = step(self.document, event, self.now, self.policy)
        assert self.document == before, "the argument was changed"
        assert (after, changes) == (again, changes_again), "the same step led elsewhere"
        assert after["generation"] >= before["generation"] + len(changes)
        assert (after["state"] == before["state"]) or changes, "a state changed in silence"
        for change in changes:
            assert change.before != change.after
        self.document = after
        return changes

    @invariant()
    def never_more_probes_than_allowed(self) -> None:
        assert len(self.document["leases"]) <= self.policy.probes

    @invariant()
    def the_document_is_json_and_bounded(self) -> None:
        text = json.dumps(self.document, allow_nan=False)
        assert json.loads(text) == self.document
        assert read(json.loads(text)) == self.document
        assert len(text) < 3000

    @invariant()
    def an_opening_ends(self) -> None:
        if self.document["state"] == "open":
            assert self.document["retry_at"] - self.now <= 86_400 + 1e-3

    @invariant()
    def a_service_that_is_well_closes_it(self) -> None:
        """From here on nobody forces anything, time passes, and every call succeeds."""
        document, now = self.document, self.now
        if document["state"] == "disabled":
            return
        if document["state"] == "forced_open" and document["retry_at"] is None:
            return
        for round_ in range(2 * self.policy.success_threshold + 4):
            if document["state"] == "closed":
                return
            owner = f"well-{round_}"
            document, _ = step(document, Acquire(owner), now, self.policy)
            refused = refusal(document, owner, now)
            if refused is None:
                record = Record(document["generation"], (("s", 1),), owner=owner)
                document, _ = step(document, record, now, self.policy)
            else:
                assert refused.retry_in is not None
                # A float cannot tell every moment: what is a hair too early asks again.
                now += refused.retry_in + 1e-6
        raise AssertionError(f"it never closes: {document}")


TestCircuit = Circuit.TestCase
TestCircuit.settings = settings(max_examples=150, stateful_step_count=30, deadline=None)
