"""What the passes of a flow run do to a letter, and what is left to a run: pure decisions."""

from datetime import UTC, datetime, timedelta
from typing import Any
from uuid import uuid4

import pytest
from prefect.client.schemas.objects import FlowRun

from prefect_resilience.durable.batches.decisions import BatchRun
from prefect_resilience.durable.batches.edge import tags
from prefect_resilience.durable.batches.strategies import RunEnd
from prefect_resilience.durable.letters import claims
from prefect_resilience.durable.letters.edge.known import starts_around
from prefect_resilience.durable.letters.model import (
    PASSES_KEPT,
    Claim,
    DeadLetter,
    Pass,
    Source,
    Starts,
    identity_of,
    letter_of,
)
from prefect_resilience.telemetry.model import FINAL

NOW = datetime(2026, 11, 20, 12, tzinfo=UTC)
FIRST: Starts = (("root", 1), ("sub", 1))


def made(starts: Starts = FIRST, **fields: Any) -> DeadLetter:
    given: dict[str, Any] = {"name": "send", "key": "send-1", **fields}
    return letter_of({"n": 1}, None, now=NOW, starts=starts, **given)[0]


def test_a_later_failure_is_added_and_a_letter_that_was_done_with_waits_again() -> None:
    anew = made((("root", 2),), task_run_id="t2", flow_run_id="root", run_count=2)
    for status, then in (
        ("waiting", "waiting"),
        ("replaying", "replaying"),
        ("in_doubt", "in_doubt"),
        ("replayed", "waiting"),
        ("settled", "waiting"),
    ):
        old = made().model_copy(update={"status": status, "settled_at": NOW})
        after = claims.add_failure(old, anew, NOW + timedelta(1))
        assert (after.status, after.failures, after.task_run_id, after.run_count) == (then, 2, "t2", 2)
        assert [one.at - NOW for one in after.passes] == [timedelta(0), timedelta(1)]
        assert (after.settled_at is None) == (status in ("replayed", "settled"))
    many = made()
    for _ in range(PASSES_KEPT + 5):
        many = claims.add_failure(many, anew, NOW)
    assert (len(many.passes), many.failures) == (PASSES_KEPT, PASSES_KEPT + 6)


def test_a_later_success_settles_what_waits_and_nothing_else() -> None:
    one = Pass(at=NOW, outcome="succeeded", starts=(("root", 2),))
    settled = claims.add_success(made(), one)
    assert settled is not None
    assert (settled.status, settled.settled_at, settled.passes[-1]) == ("settled", NOW, one)
    assert claims.add_success(settled, one) is None
    assert claims.refusal(settled, NOW, despite_doubt=True) == claims.SETTLED
    doubtful = claims.add_success(made().model_copy(update={"status": "in_doubt"}), one)
    assert doubtful is not None
    assert (doubtful.status, len(doubtful.passes)) == ("in_doubt", 2)
    # Its replay fails: the run has made the call meanwhile.
    claim = Claim(owner="me", token="token", since=NOW, until=NOW + timedelta(seconds=60))
    taken = claims.begin_replay(made(), claim)
    meanwhile = claims.add_success(taken, one)
    assert meanwhile is not None
    failed = claims.end_replay(meanwhile, "failed", NOW)
    assert (failed.status, failed.settled_at) == ("settled", NOW)


# -- what Prefect knows


def test_while_the_api_does_not_answer_a_letter_names_its_own_run(monkeypatch: pytest.MonkeyPatch) -> None:
    def fails(_: FlowRun) -> Starts:
        raise ConnectionError("no API")

    monkeypatch.setattr(tags, "passes_of_runs", fails)
    flow_run = FlowRun(flow_id=uuid4(), run_count=2)
    assert starts_around(flow_run) == ((str(flow_run.id), 2),)


def run(run_id: str, kind: str, count: int = 1, state: str = "") -> BatchRun:
    some: dict[str, Any] = {"id": run_id, "deployed": False, "next_at": None, "ended": RunEnd(kind)}
    return BatchRun(
        **some, name=f"the {run_id}", type=kind, state=state or kind.title(), since=0.0, run_count=count
    )


@pytest.mark.parametrize("kind", ["SCHEDULED", "PENDING", "RUNNING", "PAUSED", "CANCELLING"])
def test_a_run_that_has_not_ended_may_make_the_call(kind: str) -> None:
    ended = [run("root", final) for final in FINAL]
    letter = made(flow_run_id="sub", run_count=1)
    assert claims.why_left_to_runs(letter, ended) is None
    says = f"its flow run 'the b' is {kind.title()}: it may make the call itself"
    assert claims.why_left_to_runs(letter, [*ended, run("b", kind)]) == (says, "run_goes_on")


def test_runs_that_were_started_again_and_may_have_made_the_call() -> None:
    letter = made(flow_run_id="sub", run_count=1)
    assert letter.flow_runs == ("root", "sub")
    late = run("root", "FAILED", 2, "TimedOut")
    others = [run("sub", "COMPLETED", 1), run("sub", "FAILED", 2), run("root", "CRASHED", 1)]
    assert claims.why_left_to_runs(letter, others) is None
    for ended in (run("root", "COMPLETED", 2), late, run("root", "CRASHED", 2), run("sub", "CANCELLED", 2)):
        says, reason = claims.why_left_to_runs(letter, [*others, ended]) or ("", "")
        assert says.startswith(f"its flow run {ended.name!r} was run again and is {ended.state};")
        assert reason == "unclear"


def test_what_makes_two_calls_the_same() -> None:
    def identity(**changes: Any) -> str:
        usual: dict[str, Any] = {
            "batch_id": "b",
            "name": "send",
            "source": Source(module="shop", qualname="send", file="/a/shop.py"),
            "key": "send-1",
            "parameters": {"n": 1},
        }
        return identity_of(**{**usual, **changes})

    assert identity() == identity(key="send-mended", source=Source(module="shop", qualname="send"))
    assert identity().partition(".")[0] == identity(parameters={"n": 2}).partition(".")[0]
    script = [Source(module=f"__prefect_loader_{n}", qualname="send", file=f"/{n}/shop.py") for n in "ab"]
    script += [
        Source(module=name, qualname="send", file="/c/shop.py") for name in ("__main__", "__mp_main__")
    ]
    assert len({identity(source=one) for one in script}) == 1
    assert identity(source=None) == identity(source=None, key="send-mended")
    assert identity(source=None, key="send") == identity(source=None)
    different = [
        identity(batch_id=None),
        identity(name="other"),
        identity(source=Source(module="other", qualname="send")),
        identity(source=Source(module="__main__", qualname="send")),
        identity(source=None),
        identity(parameters={"n": 2}),
    ]
    assert len({identity(), *different}) == len(different) + 1
