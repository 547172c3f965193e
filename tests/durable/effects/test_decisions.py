"""What a recovery is to do, to the letter: however a batch stands, and whatever is asked for."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any
from uuid import UUID

import pytest

from prefect_resilience import Backoff
from prefect_resilience.durable.batches import decisions
from prefect_resilience.durable.batches.audit import NO_RECOVERIES
from prefect_resilience.durable.batches.decisions import (
    ASKED,
    BatchRun,
    BatchSnapshot,
    RecoveryRequest,
    archive_in_words,
    decided,
    hint_for,
    with_rollback,
)
from prefect_resilience.durable.batches.strategies import (
    RecoveryHint,
    RecoveryPolicy,
    RecoveryTrail,
    RunEnd,
    SeenEffect,
)
from prefect_resilience.durable.sagas.compensations import Compensation, RollbackReport, not_undone
from prefect_resilience.errors.taxonomy import ErrorCategory, ErrorInfo

NOW, NEXT = 1_000.0, 1_500.0
EVEN = RecoveryPolicy(attempts=3, backoff=Backoff.exponential(60, jitter=0.0, maximum=200))
JITTERED = RecoveryPolicy(attempts=3, backoff=Backoff.exponential(100, jitter=0.5, maximum=200))
OFF = RecoveryPolicy(attempts=0)
REFUSED_401 = RunEnd("FAILED", ErrorInfo.of(ErrorCategory.AUTH, "HTTP_401"))

DONE = SeenEffect("paid", "external", "done", compensate=True)
FAILED = SeenEffect("mailed", "external", "failed")
DOUBT = SeenEffect("booked", "external", "unknown")
HALF_UNDONE = SeenEffect("held", "external", "compensating", compensate=True)


@dataclass(frozen=True)
class Decided:
    """What counts of a decision."""

    strategy: str | None
    action: str
    why: str
    next_at: float | None = None


def decide(stands: BatchSnapshot, asked: RecoveryRequest, chance: float = 0.5) -> Decided:
    report = decisions.decide(stands, asked, chance)
    assert report.batch_id == stands.batch_id
    assert report.flow_run_id == (None if stands.run is None else str(stands.run.id))
    return Decided(report.strategy, report.action, report.why, report.next_at)


RUN_ID = str(UUID(int=1))


def run(state: str | None, type_: str = "", **more: Any) -> BatchRun | None:
    """The batch's flow run in a state of that name, deployed; None: no run is known."""
    if state is None:
        return None
    type_ = type_ or state.upper()
    some: dict[str, Any] = {"deployed": True, "next_at": None, "ended": RunEnd(type_)}
    return BatchRun(UUID(int=1), "brave-hare", type_, state, 900.0, **some | more)


def seen(
    run: BatchRun | None = None,
    *effects: SeenEffect,
    busy: tuple[str, ...] = (),
    batch_id: str = RUN_ID,
    recovered: tuple[int, float | None] = (0, None),
    abandoned_at: float | None = None,
    begun_at: float | None = None,
) -> BatchSnapshot:
    counted = {"automatic": recovered[0], "automatic_at": recovered[1], "abandoned_at": abandoned_at}
    log = {**NO_RECOVERIES, **counted}
    return BatchSnapshot(batch_id, effects, busy, run, log, NOW, begun_at)


def refused(why: str, next_at: float | None = None) -> Decided:
    return Decided(None, "refused", why, next_at)


BUSY = (
    "its effect 'x' is in progress: wait for its end; if its process hangs, end it, or settle the effect "
    "with force"
)
WAITS = "its flow run 'brave-hare' is Late and already waits for a worker"
IN_PROCESS = (
    "its flow run 'brave-hare' is AwaitingRetry and waits in its process for a retry: use force if that "
    "process is certainly gone"
)
PAUSED = "its flow run 'brave-hare' is Suspended: resume it"
GOES_ON = "its flow run 'brave-hare' is {}: wait for its end, or use force if its process is certainly gone"
COMPLETED = "its flow run 'brave-hare' completed"
CRASHED = "its run crashed"
RUN_FAILED = "its run failed"
NOTHING_SENT = "no external effect is done"
UP_TO_PAID = "every external effect up to 'paid' is done and will not be repeated"
AGAIN = "run your program inside `with batch({!r}):`; effects that are done are not repeated"
NOT_KNOWN = f"it has no known flow run with a deployment: {AGAIN.format('b-1')}"
NOT_DEPLOYED = (
    f"its flow run 'brave-hare' has no deployment, so no worker can run it again: {AGAIN.format(RUN_ID)}"
)
UNKNOWN_DOUBT = "the outcome of 'booked' is unknown, and there is no verify to ask: settle it"


REQUESTED = "a restart was requested"
LAST = "restart_from_last_external"


def rescheduled(because: str, strategy: Any = "restart_batch", next_at: float | None = NOW) -> Decided:
    return Decided(strategy, "rescheduled", because, next_at)


def advice(strategy: str, why: str) -> Decided:
    return Decided(strategy, "told", why)


def nothing(why: str) -> Decided:
    return Decided(None, "nothing", why)


IN_THE_WAY = [
    ("an effect is busy", seen(run("Crashed"), busy=("x", "y")), BUSY, None),
    ("scheduled", seen(run("Late", "SCHEDULED", next_at=NEXT)), WAITS, NEXT),
    (
        "a retry in the process",
        seen(run("AwaitingRetry", "SCHEDULED", next_at=NEXT, in_process=True)),
        IN_PROCESS,
        NEXT,
    ),
    ("paused", seen(run("Suspended", "PAUSED", next_at=NEXT)), PAUSED, None),
    ("running", seen(run("Running")), GOES_ON.format("Running"), None),
]


@pytest.mark.parametrize("strategy", ASKED)
@pytest.mark.parametrize(
    ("stands", "why", "next_at"), [pytest.param(*case, id=name) for name, *case in IN_THE_WAY]
)
def test_what_stands_in_the_way_of_all_that_can_be_asked(
    stands: BatchSnapshot, why: str, next_at: float | None, strategy: str
) -> None:
    assert decide(stands, RecoveryRequest(strategy)) == refused(why, next_at)


@pytest.mark.parametrize(("state", "type_"), [(one[1].run.state, one[1].run.type) for one in IN_THE_WAY[2:]])
def test_force_passes_a_run_that_has_not_ended(state: str, type_: str) -> None:
    stands = seen(run(state, type_, next_at=NEXT), DONE, FAILED)
    because = f"{CRASHED}; {UP_TO_PAID}"
    assert decide(stands, RecoveryRequest(force=True)) == rescheduled(because, LAST)
    assert decide(stands, RecoveryRequest("abandon", force=True)) == Decided(
        "abandon", "abandoned", "it was abandoned"
    )


AUTO: list[tuple[str, BatchSnapshot, Decided]] = [
    ("completed", seen(run("Completed"), DONE), nothing("its flow run completed")),
    ("crashed", seen(run("Crashed")), rescheduled(f"{CRASHED}; {NOTHING_SENT}")),
    ("crashed behind an effect", seen(run("Crashed"), DONE), rescheduled(f"{CRASHED}; {UP_TO_PAID}", LAST)),
    (
        "crashed among effects",
        seen(run("Crashed"), FAILED, DONE),
        rescheduled(f"{CRASHED}; 1 of 2 external effects are done and will not be repeated", "selective"),
    ),
    (
        "crashed, and no deployment",
        seen(run("Crashed", deployed=False)),
        advice("restart_batch", f"{CRASHED}; {NOTHING_SENT}; {NOT_DEPLOYED}"),
    ),
    (
        "crashed under a name, and no deployment",
        seen(run("Crashed", deployed=False), batch_id="b-1"),
        advice("restart_batch", f"{CRASHED}; {NOTHING_SENT}; {NOT_KNOWN}"),
    ),
    (
        "a half rollback",
        seen(run("Failed"), HALF_UNDONE),
        Decided(
            "compensate", "compensated", f"{RUN_FAILED}; its rollback was interrupted and must be finished"
        ),
    ),
    ("a doubt", seen(run("Failed"), DOUBT), advice("manual_only", f"{RUN_FAILED}; {UNKNOWN_DOUBT}")),
    (
        "cancelled",
        seen(run("Cancelled"), DONE),
        advice("abandon", "its run was cancelled, and a cancelled run is not recovered automatically"),
    ),
]


@pytest.mark.requirement("004.13")
@pytest.mark.parametrize(("stands", "decided"), [pytest.param(*case, id=name) for name, *case in AUTO])
def test_what_is_done_unasked(stands: BatchSnapshot, decided: Decided) -> None:
    assert decide(stands, RecoveryRequest()) == decided


WILL_NOT_PASS = "its run failed with HTTP_401 (auth), which is a permanent error"


@pytest.mark.requirement("004.13")
@pytest.mark.parametrize(
    ("permanent", "decided"),
    [
        (
            "manual",
            advice(
                "manual_only",
                f"{WILL_NOT_PASS}; fix the cause and restart, or compensate: "
                "1 of 1 done effects can be compensated",
            ),
        ),
        (
            "compensate",
            Decided("compensate", "compensated", f"{WILL_NOT_PASS}; 1 of 1 done effects can be compensated"),
        ),
        ("abandon", Decided("abandon", "abandoned", WILL_NOT_PASS)),
    ],
)
def test_what_is_done_unasked_about_an_error_that_will_not_pass(permanent: Any, decided: Decided) -> None:
    stands = seen(run("Failed", ended=REFUSED_401), DONE)
    assert decide(stands, RecoveryRequest(policy=RecoveryPolicy(permanent=permanent))) == decided


ABANDONED = (
    "it was abandoned at 1970-01-01 00:10:00 UTC: it is recovered only with a named strategy, such as restart"
)


GIVEN_UP = {"abandoned_at": 600.0}


def test_an_effect_that_was_begun_later_takes_an_abandonment_back() -> None:
    stands = seen(run("Crashed"), DONE, FAILED, **GIVEN_UP, begun_at=601.0)
    assert decide(stands, RecoveryRequest()).action == "rescheduled"
    assert stands.trail == RecoveryTrail(0, None)


def entries(keys: str, why: str = "") -> tuple[Compensation, ...]:
    return tuple(Compensation(key, None, None, None, 1, why) for key in keys.split())


STAYS = "it has no compensation"
KEPT = "'mailed' (it has no compensation)"
REST = "; a person must act on the rest"


@pytest.mark.parametrize(
    ("found", "action", "planned_action", "why"),
    [
        ({"compensated": entries("b a")}, "compensated", "compensated", "compensated: 'b', 'a'"),
        ({}, "nothing", "nothing", "there is nothing to compensate"),
        (
            {"already": entries("a"), "skipped": entries("mailed", STAYS)},
            "compensated",
            "compensated",
            f"compensated: 'a'; not compensated: {KEPT}",
        ),
        (
            {"skipped": entries("mailed", STAYS)},
            "told",
            "told",
            f"compensated: nothing; not compensated: {KEPT}",
        ),
        (
            {"in_doubt": entries("booked", "nothing can tell")},
            "told",
            "compensated",
            f"compensated: nothing; not compensated: 'booked' (nothing can tell){REST}",
        ),
    ],
)
@pytest.mark.parametrize("planned", [False, True])
def test_a_rollback_says_what_it_undoes_and_what_not(
    found: dict[str, Any], planned: bool, action: Any, planned_action: Any, why: str
) -> None:
    if planned:
        action, why = planned_action, why.replace("compensated", "to compensate").removesuffix(REST)
    asked = decided(seen(), "compensate", "compensated", "a rollback was requested")
    expected = decided(seen(), "compensate", action, f"a rollback was requested; {why}")
    report = RollbackReport("b", None, **found)
    undone = tuple(one.key for one in (*report.already, *report.compensated))
    lists = {"undone": undone, "not_undone": not_undone(report)}
    assert with_rollback(asked, report, planned=planned) == expected.model_copy(update=lists)
    assert planned or with_rollback(asked, report) == expected.model_copy(update=lists)


ONE = "its 1 done effect was moved to the archive at 1970-01-01 00:08:20 UTC"
TWO = "its 2 done effects were moved to the archive at 1970-01-01 00:08:20 UTC"
DO_AGAIN = "a restart would repeat them; use force to allow that"


def test_force_leaves_it_as_it_is_how_a_run_ended() -> None:
    failed = seen(run("Failed", ended=REFUSED_401), DONE)
    assert hint_for(failed, RecoveryRequest(force=True), 0.5) == hint_for(failed, RecoveryRequest(), 0.5)
    cancelled = seen(run("Cancelled"), DONE)
    assert decide(cancelled, RecoveryRequest(force=True)).strategy == "abandon"
    assert hint_for(seen(None, DONE), RecoveryRequest(force=True), 0.5) is None


def test_archived_effects_in_words() -> None:
    assert [archive_in_words(number, 500.0) for number in (1, 2)] == [ONE, TWO]


@pytest.mark.parametrize(
    ("effects", "why"), [((), "it has no effects"), ((DONE,), "no effect is missing or in doubt")]
)
def test_a_batch_without_a_run_and_without_doubts_needs_nothing(effects: Any, why: str) -> None:
    assert decide(seen(None, *effects), RecoveryRequest()) == nothing(why)


def test_a_ledger_that_lost_records_is_for_a_person() -> None:
    lost = replace(seen(run("Crashed"), DONE), not_recorded="2 effects are missing")
    assert hint_for(lost, RecoveryRequest(), 0.5) == RecoveryHint(
        strategy="manual_only", why="2 effects are missing"
    )
    assert hinted(lost, RecoveryRequest(force=True)).strategy == LAST


def test_only_a_restart_for_a_service_that_says_when_it_is_back_waits() -> None:
    away = RunEnd("FAILED", ErrorInfo.of(ErrorCategory.UNAVAILABLE, "503"), back_at=NEXT)
    for ended, waits in ((away, True), (RunEnd("FAILED"), False)):
        assert decisions.decide(seen(run("Failed", ended=ended)), RecoveryRequest(), 0.5).waits is waits


def archived(effects: int) -> BatchSnapshot:
    return replace(seen(run("Crashed")), archived=archive_in_words(effects, 500.0))


RESTART, FORCED = RecoveryRequest("restart"), RecoveryRequest(force=True)
COMPENSATED = Decided("compensate", "compensated", "a rollback was requested")
AFTER_TWO = seen(run("Crashed"), recovered=(2, NOW))
TO_PAID = Decided("compensate", "compensated", "a rollback to 'paid' was requested")
LOCAL = run("Crashed", deployed=False)
BY_HAND = "manual_only was requested"

ASKED_FOR: list[tuple[str, BatchSnapshot, RecoveryRequest, Decided]] = [
    ("crashed", seen(run("Crashed"), DONE), RecoveryRequest("restart_batch"), rescheduled(REQUESTED)),
    # a restart goes as the effects lie
    ("behind the last", seen(run("Crashed"), DONE), RESTART, rescheduled(REQUESTED, LAST)),
    ("mixed", seen(run("Failed"), FAILED, DONE), RESTART, rescheduled(REQUESTED, "selective")),
    # or by name, whatever the effects
    ("selective", seen(run("Failed")), RecoveryRequest("selective"), rescheduled(REQUESTED, "selective")),
    (
        "completed",
        seen(run("Completed"), DONE),
        RecoveryRequest("selective"),
        Decided("selective", "refused", COMPLETED),
    ),
    (
        "completed and not deployed",
        seen(run("Completed", deployed=False)),
        RESTART,
        Decided("restart_batch", "refused", COMPLETED),
    ),
    ("not deployed", seen(LOCAL), RESTART, advice("restart_batch", f"{REQUESTED}; {NOT_DEPLOYED}")),
    ("no run", seen(batch_id="b-1"), RESTART, advice("restart_batch", f"{REQUESTED}; {NOT_KNOWN}")),
    # it waits for no pause
    ("after two recoveries", AFTER_TWO, RecoveryRequest("restart", policy=EVEN), rescheduled(REQUESTED)),
    ("though it is off", AFTER_TWO, RecoveryRequest("restart", policy=OFF), rescheduled(REQUESTED)),
    # force
    ("busy, by force", seen(run("Running"), busy=("x",)), FORCED, refused(BUSY)),
    (
        "completed, taken for crashed by force",
        seen(run("Completed"), DONE),
        FORCED,
        rescheduled(f"{CRASHED}; {UP_TO_PAID}", LAST),
    ),
    (
        "completed, by force",
        seen(run("Completed"), DONE),
        RecoveryRequest("selective", force=True),
        rescheduled(REQUESTED, "selective"),
    ),
    # an abandoned batch is left alone, unless a strategy is named
    *(
        (f"abandoned, begun {begun}", seen(run("Crashed"), DONE, FAILED, **GIVEN_UP, begun_at=begun), *row)
        for begun in (None, 500.0, 600.0)
        for row in (
            (RecoveryRequest(), nothing(ABANDONED)),
            (FORCED, nothing(ABANDONED)),
            (RESTART, rescheduled(REQUESTED, LAST)),
            (RecoveryRequest("compensate"), COMPENSATED),
        )
    ),
    # what was asked for is done however the batch stands
    ("a person", seen(None, DONE, DOUBT), RecoveryRequest("manual_only"), advice("manual_only", BY_HAND)),
    ("rolled back", seen(run("Completed"), FAILED), RecoveryRequest("compensate"), COMPENSATED),
    ("rolled back to", seen(LOCAL, FAILED), RecoveryRequest("compensate", to="paid"), TO_PAID),
    ("given up", seen(), RecoveryRequest("abandon"), Decided("abandon", "abandoned", "it was abandoned")),
    # what is archived is not done again unasked
    ("archived", archived(1), RecoveryRequest(), Decided("restart_batch", "refused", f"{ONE}: {DO_AGAIN}")),
    ("two archived", archived(2), RESTART, Decided("restart_batch", "refused", f"{TWO}: {DO_AGAIN}")),
    (
        "archived, rolled back",
        archived(2),
        RecoveryRequest("compensate"),
        Decided("compensate", "refused", f"{TWO}: a rollback does not find them there"),
    ),
    ("archived, no run", replace(archived(2), run=None), RecoveryRequest(), nothing(TWO)),
]


@pytest.mark.parametrize(
    ("stands", "asked", "decided"), [pytest.param(*case, id=name) for name, *case in ASKED_FOR]
)
def test_what_is_asked_for(stands: BatchSnapshot, asked: RecoveryRequest, decided: Decided) -> None:
    assert decide(stands, asked) == decided


def hinted(stands: BatchSnapshot, asked: RecoveryRequest, chance: float = 0.5) -> RecoveryHint:
    hint = hint_for(stands, asked, chance)
    assert hint is not None
    return hint


def test_the_policy_is_that_which_was_asked_else_the_runs_else_the_default() -> None:
    crashed, said = seen(run("Crashed")), seen(run("Crashed", policy=OFF))
    assert hinted(crashed, RecoveryRequest()).strategy == "restart_batch"
    assert hinted(said, RecoveryRequest()).why == f"{CRASHED}; automatic recovery is off"
    assert hinted(said, RecoveryRequest(policy=EVEN)).strategy == "restart_batch"
    assert hinted(crashed, RecoveryRequest(policy=OFF)).why == f"{CRASHED}; automatic recovery is off"
    assert decide(said, RecoveryRequest()) == advice("manual_only", f"{CRASHED}; automatic recovery is off")


def test_the_trail_of_the_log_counts() -> None:
    once, often = seen(run("Crashed"), recovered=(1, 980.0)), seen(run("Crashed"), recovered=(3, 980.0))
    hint = hinted(once, RecoveryRequest(policy=EVEN))
    assert (hint.attempt, hint.next_at) == (2, 1_040.0)
    assert decide(once, RecoveryRequest(policy=EVEN)) == rescheduled(
        f"{CRASHED}; {NOTHING_SENT}", next_at=1_040.0
    )
    tried = f"{CRASHED}; it was recovered 3 times in a row and failed again"
    assert decide(often, RecoveryRequest(policy=EVEN)) == advice("manual_only", tried)


@pytest.mark.parametrize("chance", [0.0, 0.25, 0.75])
def test_chance_spreads_the_pause(chance: float) -> None:
    stands = seen(run("Crashed"), recovered=(1, NOW))
    at = NOW + JITTERED.backoff.delay(0, random=chance)
    assert hinted(stands, RecoveryRequest(policy=JITTERED), chance).next_at == at
    assert decide(stands, RecoveryRequest(policy=JITTERED), chance).next_at == at
    assert at != NOW + JITTERED.backoff.delay(0, random=0.5)
