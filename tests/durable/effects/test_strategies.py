"""Which strategy is chosen for which case: a table, and the laws that hold for every batch."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from prefect_resilience import Backoff, ConfigurationError, classify
from prefect_resilience.durable.batches.strategies import (
    ENDED_BADLY,
    RESTARTS,
    RecoveryPolicy,
    RecoveryTrail,
    RunEnd,
    SeenEffect,
    next_at,
    recovery_hint,
    restart_strategy,
)
from prefect_resilience.errors.taxonomy import ErrorCategory, ErrorInfo

NOW = 1_000.0
POLICY = RecoveryPolicy(attempts=3, backoff=Backoff.exponential(60, jitter=0.0, maximum=200))
CRASHED = RunEnd("CRASHED", ErrorInfo.of(ErrorCategory.AGENT_CRASH, "CRASHED"))
PASSING = RunEnd("FAILED", classify(ConnectionError("reset")))
PERMANENT = RunEnd("FAILED", ErrorInfo.of(ErrorCategory.AUTH, "401"))
IN_DOUBT = RunEnd("FAILED", ErrorInfo.of(ErrorCategory.SUBTASK, "InDoubt"))
TOO_BIG = RunEnd("FAILED", ErrorInfo.of(ErrorCategory.OVERFLOW, "context_length_exceeded"))
NOBODY_KNOWS = RunEnd("FAILED", classify(RuntimeError("1/3 states failed.")))
CANCELLED, COMPLETED, RUNNING = RunEnd("CANCELLED"), RunEnd("COMPLETED"), RunEnd("RUNNING")
NOTHING = None


def external(key, state="done", **more):
    return SeenEffect(key, "external", state, **more)


def effects(text):
    """`d`one, `f`ailed, `u`nknown, `v`erifiable doubt, `c`ompensable and done, `i`/`x`: idempotent, done or
    in doubt, `g`/`p`/`q`: conditional, done, in doubt, in doubt with a verify, `z`: compensated, `h`alf
    undone, `s`tuck half undone; the keys are a, b, ..."""
    made = {
        "d": lambda key: external(key),
        "f": lambda key: external(key, "failed"),
        "u": lambda key: external(key, "unknown"),
        "v": lambda key: external(key, "unknown", verify=True),
        "c": lambda key: external(key, compensate=True),
        "i": lambda key: SeenEffect(key, "idempotent", "done"),
        "x": lambda key: SeenEffect(key, "idempotent", "unknown"),
        "g": lambda key: SeenEffect(key, "conditional", "done"),
        "p": lambda key: SeenEffect(key, "conditional", "unknown"),
        "q": lambda key: SeenEffect(key, "conditional", "unknown", verify=True),
        "z": lambda key: external(key, "compensated", compensate=True),
        "h": lambda key: external(key, "compensating", compensate=True),
        "s": lambda key: external(key, "compensating", compensate=True, stuck=True),
    }
    return [made[letter](chr(ord("a") + place)) for place, letter in enumerate(text)]


def hint_of(*asked: Any) -> Any:
    hint = recovery_hint(*asked)
    assert hint is not None
    return hint


TABLE = [
    # the batch, how it ended, what is chosen, whether by itself, a part of why
    ("", CRASHED, "restart_batch", True, "no external effect is done"),
    ("f", PASSING, "restart_batch", True, "failed with"),
    ("x", CRASHED, "restart_batch", True, "run crashed"),
    ("v", CRASHED, "restart_batch", True, "verify asks the receiver about 'a'"),
    ("dd", CRASHED, "restart_from_last_external", True, "up to 'b' is done"),
    ("ddf", PASSING, "restart_from_last_external", True, "up to 'b' is done"),
    ("dfd", PASSING, "selective", True, "2 of 3 external effects are done"),
    # what may always be done again, and what may be after a look, hold nothing up
    ("q", CRASHED, "restart_batch", True, "verify asks the receiver about 'a'"),
    ("dxp", PASSING, "restart_from_last_external", True, "up to 'a' is done"),
    ("dpu", CRASHED, "manual_only", False, "the outcome of 'c' is unknown"),
    ("zh", PASSING, "compensate", True, "its run failed with "),
    ("d", PERMANENT, "manual_only", False, "its run failed with 401 (auth), which is a permanent error"),
    ("df", IN_DOUBT, "restart_from_last_external", True, "failed with InDoubt"),
    ("du", IN_DOUBT, "manual_only", False, "the outcome of 'b' is unknown"),
    ("d", TOO_BIG, "manual_only", False, "overflow"),
    ("dc", PERMANENT, "manual_only", False, "or compensate: 1 of 2 done effects can be compensated"),
    ("dd", CANCELLED, "abandon", False, "its run was cancelled"),
    ("df", COMPLETED, None, None, ""),
    ("dd", COMPLETED, None, None, ""),
    ("", NOTHING, None, None, ""),
    ("zh", CRASHED, "compensate", True, "its rollback was interrupted"),
    ("z", COMPLETED, None, None, ""),
]


@pytest.mark.parametrize(("batch", "ended", "strategy", "automatic", "why"), TABLE)
def test_the_strategy(batch, ended, strategy, automatic, why):
    hint = recovery_hint(effects(batch), ended, RecoveryTrail(), POLICY, NOW)
    if strategy is None:
        assert hint is None
        return
    assert hint is not None
    assert (hint.strategy, hint.automatic) == (strategy, automatic)
    assert why in hint.why


@pytest.mark.parametrize("ended", [CRASHED, PASSING, PERMANENT, CANCELLED, NOTHING])
@pytest.mark.parametrize("batch", ["", "df", "du", "zh", "zd", "c"])
def test_what_was_abandoned_stays_so(batch, ended):
    policy = POLICY.model_copy(update={"permanent": "compensate"})
    hint = hint_of(effects(batch), ended, RecoveryTrail(1, NOW, 0.0), policy, NOW)
    assert (hint.strategy, hint.automatic, hint.next_at) == ("abandon", False, None)
    assert hint.why.startswith("it was abandoned at 1970-01-01 00:00:00 UTC: it is recovered only with")
    assert hint.waiting == tuple(one.key for one in effects(batch) if one.waits)


def test_what_the_hint_names():
    hint = hint_of(effects("dddf"), CRASHED, RecoveryTrail(), POLICY, NOW)
    assert (hint.skip, hint.skip_until, hint.resume_from) == (("a", "b", "c"), "c", "d")
    hint = hint_of(effects("dfdv"), CRASHED, RecoveryTrail(), POLICY, NOW)
    assert (hint.skip, hint.skip_until, hint.resume_from) == (("a", "c"), None, "b")
    assert (hint.verify, hint.waiting) == (("d",), ())
    hint = hint_of(effects("duu"), CRASHED, RecoveryTrail(), POLICY, NOW)
    assert (hint.waiting, hint.next_at, hint.attempt) == (("b", "c"), None, None)
    # Selective: what is completed of any kind is skipped, and it goes on with the first that is not.
    hint = hint_of(effects("digpfd"), CRASHED, RecoveryTrail(), POLICY, NOW)
    assert (hint.strategy, hint.skip, hint.resume_from) == ("selective", ("a", "b", "c", "f"), "d")


def test_pauses_grow_and_end():
    seen = []
    for recoveries in range(5):
        hint = hint_of(effects("d"), CRASHED, RecoveryTrail(recoveries, NOW), POLICY, NOW + 1)
        seen.append((hint.strategy, hint.attempt, hint.next_at))
    assert seen == [
        ("restart_from_last_external", 1, NOW + 1),
        ("restart_from_last_external", 2, NOW + 60),
        ("restart_from_last_external", 3, NOW + 120),
        ("manual_only", None, None),
        ("manual_only", None, None),
    ]
    assert next_at(RecoveryTrail(9, NOW), POLICY, NOW) == NOW + 200, "never longer than the maximum"
    assert next_at(RecoveryTrail(1, NOW), POLICY, NOW + 500) == NOW + 500, "never in the past"
    once = RecoveryPolicy(attempts=1)
    assert "once" in hint_of([], CRASHED, RecoveryTrail(1, NOW), once, NOW).why


SERVICE_DOWN = RunEnd("FAILED", ErrorInfo.of(ErrorCategory.UNAVAILABLE, "503"), back_at=NOW + 3_600)


@pytest.mark.parametrize(
    ("trail", "now", "counted", "at"),
    [
        (RecoveryTrail(), NOW, None, NOW + 3_600),
        (RecoveryTrail(3, NOW), NOW, None, NOW + 3_600),  # every attempt is used up, and it is not counted
        (RecoveryTrail(0, NOW, waits=1, waits_since=NOW), NOW + 3_599, None, NOW + 3_600),
        (RecoveryTrail(0, NOW + 3_600, waits=2, waits_since=NOW), NOW + 3_600, None, NOW + 3_720),
        (RecoveryTrail(0, NOW, waits=24, waits_since=NOW), NOW + 86_399, None, NOW + 86_399),
        (RecoveryTrail(0, NOW, waits=24, waits_since=NOW), NOW + 86_400, 1, NOW + 86_400),
    ],
)
def test_no_attempt_is_counted_against_a_service_that_says_when_it_is_back(trail, now, counted, at):
    hint = hint_of(effects("df"), SERVICE_DOWN, trail, POLICY, now)
    assert (hint.strategy, hint.automatic) == ("restart_from_last_external", True)
    assert (hint.attempt, hint.next_at) == (counted, at)
    said = "the service will be back at 1970-01-01 01:16:40 UTC, so no attempt is counted" in hint.why
    assert said is (counted is None)


def test_runs_that_wait_for_one_service_do_not_come_back_at_once():
    spread = RecoveryPolicy(backoff=Backoff.exponential(60, jitter=0.5))
    times = [next_at(RecoveryTrail(), spread, NOW, random, NOW + 100) for random in (0.0, 0.5, 1.0)]
    assert times == [NOW + 100, NOW + 125, NOW + 150]


def test_a_service_that_waits_for_ever_and_a_recovery_that_is_off():
    waited = RecoveryTrail(3, NOW, waits=9, waits_since=NOW)
    for trail, policy in ((waited, POLICY), (RecoveryTrail(), RecoveryPolicy(attempts=0))):
        assert hint_of([], SERVICE_DOWN, trail, policy, NOW + 90_000).strategy == "manual_only"


def test_a_policy_that_cannot_be_meant():
    with pytest.raises(ConfigurationError, match="attempts"):
        RecoveryPolicy(attempts=-1)
    with pytest.raises(ConfigurationError, match="permanent"):
        RecoveryPolicy(permanent="undo")


ROLLED_BACK = "it was rolled back, and a restart would repeat the compensated effects"
SETTLE_A = "the outcome of 'a' is unknown, and there is no verify to ask: settle it"
MANUAL_ONLY = [
    ("u", CRASHED, 0, POLICY, f"its run crashed; {SETTLE_A}"),
    ("u", NOTHING, 0, POLICY, SETTLE_A),
    ("ud", COMPLETED, 0, POLICY, f"its run completed; {SETTLE_A}"),
    ("s", CRASHED, 0, POLICY, f"its run crashed; {SETTLE_A}"),
    ("z", CRASHED, 0, POLICY, f"its run crashed; {ROLLED_BACK}"),
    ("d", CRASHED, 3, POLICY, "its run crashed; it was recovered 3 times in a row and failed again"),
    ("d", CRASHED, 0, RecoveryPolicy(attempts=0), "its run crashed; automatic recovery is off"),
]


@pytest.mark.requirement("004.08")
@pytest.mark.parametrize(("batch", "ended", "recoveries", "policy", "why"), MANUAL_ONLY)
def test_manual_only_says_why(batch, ended, recoveries, policy, why):
    hint = hint_of(effects(batch), ended, RecoveryTrail(recoveries, NOW), policy, NOW)
    assert (hint.strategy, hint.automatic, hint.next_at) == ("manual_only", False, None)
    assert hint.why == why


BATCHES = st.text(alphabet="dfuvcixgpqzhs", max_size=8).map(effects)
ENDS = st.sampled_from(
    [CRASHED, PASSING, PERMANENT, TOO_BIG, NOBODY_KNOWS, CANCELLED, COMPLETED, RUNNING, None]
)
POLICIES = st.builds(
    RecoveryPolicy,
    attempts=st.integers(0, 4),
    permanent=st.sampled_from(["manual", "compensate", "abandon"]),
)


@settings(deadline=None)
@given(BATCHES, ENDS, st.integers(0, 5), POLICIES)
def test_laws(batch, ended, recoveries, policy):
    hint = recovery_hint(batch, ended, RecoveryTrail(recoveries, NOW), policy, NOW)
    waits = [one.key for one in batch if one.waits]
    going_on = ended is not None and ended.state not in ENDED_BADLY | {"COMPLETED"}
    if waits and not going_on:
        assert hint is not None
        assert hint.strategy == "manual_only", "an unknown outcome is never guessed"
        assert list(hint.waiting) == waits
    if hint is None:
        return
    assert not going_on
    if hint.automatic:
        assert not waits
        assert ended is None or ended.state in {"FAILED", "CRASHED"} or hint.strategy == "compensate"
    if hint.automatic and hint.strategy in RESTARTS:
        assert recoveries < policy.attempts
        assert hint.next_at is not None
        assert hint.next_at >= NOW
        assert hint.attempt == recoveries + 1
        assert not any(one.state in ("compensated", "compensating") for one in batch)
    if hint.strategy == "restart_batch":
        assert not any(one.kind == "external" and one.state == "done" for one in batch)
    assert set(hint.skip) == {one.key for one in batch if one.state == "done"}
    assert hint.resume_from not in hint.skip


@pytest.mark.requirement("004.07")
@settings(deadline=None)
@given(BATCHES)
def test_the_three_restarts_tell_apart_what_is_done(batch):
    strategy = restart_strategy(batch)
    done = [one.state == "done" for one in batch if one.kind == "external"]
    sorted_down = sorted(done, reverse=True) == done
    expected = (
        "restart_batch" if not any(done) else "restart_from_last_external" if sorted_down else "selective"
    )
    assert strategy == expected
