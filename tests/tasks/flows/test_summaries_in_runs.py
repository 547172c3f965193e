"""What flow runs leave behind: summaries, hints, and nothing after a quiet one."""

from __future__ import annotations

import asyncio
import base64
import re
from typing import Any

import pytest
from prefect import flow, task
from prefect.client.orchestration import get_client
from prefect.runtime import flow_run
from prefect.task_runners import ProcessPoolTaskRunner

from prefect_resilience import (
    Backoff,
    CircuitBreaker,
    Effect,
    Fallback,
    RecoveryPolicy,
    Retry,
    batch_status,
    register_secret,
    resilient_flow,
    resilient_task,
)
from prefect_resilience.durable.batches.edge.flow_runs import RECOVERY_LABEL, RECOVERY_TAG
from prefect_resilience.durable.batches.strategies import RecoveryHint
from prefect_resilience.tasks.edge import ending
from prefect_resilience.tasks.edge import summary_reading as reading
from prefect_resilience.tasks.edge.ending import run_summary
from prefect_resilience.tasks.summaries.markdown import commands
from prefect_resilience.telemetry import notes
from tests.prefect_runs import until

pytestmark = pytest.mark.api

QUICK = Retry(attempts=3, backoff=Backoff.constant(0.05), retry_on=Exception)


def ran(mode, made, *args, **kwargs) -> Any:
    outcome = made(*args, return_state=True, **kwargs)
    return asyncio.run(outcome) if mode.isasync else outcome


def run_id_of(state) -> str:
    return str(state.state_details.flow_run_id)


def section(text: str, title: str) -> list[list[str]]:
    """The rows of a table."""
    part = text.split(f"## {title}\n", 1)[1].split("\n## ")[0]
    rows = [line for line in part.splitlines() if line.startswith("|")][2:]
    return [[cell.strip() for cell in row.strip("|").split(" | ")] for row in rows]


def picture(text: str) -> str:
    return base64.b64decode(re.search(r"data:image/svg\+xml;base64,([^)]+)", text)[1]).decode()


@task
def fine(n: int) -> int:
    return n


def fails() -> None:
    raise ConnectionError("no line")


@pytest.mark.smoke
@pytest.mark.requirement("002.27")
def test_a_run_in_which_much_happened_says_so(mode, left):
    calls: list[str] = []

    def unsteady():
        calls.append("unsteady")
        if len(calls) < 3:
            raise ConnectionError("no line")

    def away():
        raise TimeoutError("late")

    steady = resilient_task(retry=QUICK, task_run_name="steady")(unsteady)
    swapped = resilient_task(
        retry=QUICK,
        circuit=CircuitBreaker("svc:a", failure_threshold=2, open_for=60),
        fallback=[Fallback.value(1)],
    )(away)
    sent = resilient_task(effect=Effect(repeat="replay"), task_run_name="sent {n}")(send)
    plain = task(retries=1, task_run_name="plain")(plain_once)

    def work():
        fine(1)
        steady()
        swapped()
        sent(1)
        sent(1)
        plain([])

    state = ran(mode, resilient_flow(name="busy")(mode.function(work)))
    text = left.summary(run_id_of(state))
    assert text.startswith(f"# {flow_run_name(state)}")
    assert "7 task runs" not in text
    assert "6 task runs, 3 retried (5 retries), 1 answered by a fallback, 1 replayed" in text
    rows = section(text, "Calls")
    assert [row[:4] for row in rows] == [
        [f"`{task_run_named(text, 'away')}`", "Degraded", "2", "1"],
        ["`sent 1`", "Replayed", "0", ""],
        ["`steady`", "Completed", "3", ""],
        ["`plain`", "Completed", "2", ""],
    ]
    assert "1 rejected call" in text
    first, second, steady = re.findall(r"^- `([^`]+)`: (.*)$", text, re.MULTILINE)[:3]
    assert first[1].endswith("fallback value (degraded)")
    assert second[1].startswith("effect ")
    assert steady == ("steady", "NETWORK\\_ERROR network: no line (x2)")
    assert section(text, "Circuits and stores")[0][1:3] == ["svc:a", "closed → open"]
    assert "steady" in picture(text)


def flow_run_name(state) -> str:
    with get_client(sync_client=True) as client:
        return client.read_flow_run(state.state_details.flow_run_id).name


def task_run_named(text: str, start: str) -> str:
    return re.search(rf"`({start}-\w+)`", text)[1]


def send(n: int) -> str:
    return f"m-{n}"


def plain_once(seen: list) -> None:
    seen.append(1)
    if len(seen) < 2:
        raise ValueError("once")


@pytest.mark.smoke
def test_a_quiet_run_leaves_nothing(mode, left):
    state = ran(mode, resilient_flow(mode.function(lambda: fine(1))))
    assert left.by(run_id_of(state)) == {}
    assert notes.last_notes(run_id_of(state)) is None


def test_plain_flows_and_tasks_with_the_hooks(mode, left):
    plain = task(retries=1)(plain_once)
    hooks: dict[str, Any] = {"on_completion": [run_summary], "on_failure": [run_summary]}
    state = ran(mode, flow(**hooks)(mode.function(lambda: plain([]))))
    text = left.summary(run_id_of(state))
    assert "1 task run, 1 retried (1 retry)." in text
    assert "How to continue" not in text

    state = ran(mode, flow(**hooks)(mode.function(fails)))
    (key,), (artifact,) = zip(*left.by(run_id_of(state)).items(), strict=True)
    assert key == f"run-summary-fails-{flow_run_name(state)}-{run_id_of(state)[-4:]}"
    assert artifact["description"]
    assert "ended **Failed**" in artifact["data"]
    assert "**restart\\_batch**: its run failed with NETWORK\\_ERROR (network)" in artifact["data"]
    assert f"with batch('{run_id_of(state)}'):" in artifact["data"]


def test_inner_flows_are_in_the_summary_of_the_outer_one(left):
    plain = task(retries=1, task_run_name="inside")(plain_once)

    @flow
    def inner():
        plain([])

    @resilient_flow
    def outer():
        fine(1)
        inner()

    state = outer(return_state=True)
    text = left.summary(run_id_of(state))
    assert "2 task runs, 1 retried (1 retry), in 2 flow runs." in text
    assert section(text, "Calls")[0][0] == "`inside`"


def test_what_ran_in_other_processes_is_in_it(left):
    @resilient_flow(task_runner=ProcessPoolTaskRunner(max_workers=1))
    def spread():
        first = unsteady_elsewhere.submit()
        second = fine.submit(1)
        return first.result(), second.result()

    state = spread(return_state=True)

    def told() -> str | None:
        text = left.summary(run_id_of(state))
        known = "2 task runs, 1 retried (1 retry)" in text and "no line" in text
        return text if known else None

    text = until(told)
    row = section(text, "Calls")[0]
    assert row[0].startswith("`unsteady_elsewhere")
    assert f"- {row[0]}: NETWORK\\_ERROR network: no line\n" in text
    assert "unsteady_elsewhere" in picture(text)


def test_a_slow_api_is_not_asked_for_ever(left, monkeypatch):
    monkeypatch.setattr(ending, "LOOKS", 0.0)

    @resilient_flow(retries=1)
    def work():
        unsteady_elsewhere()
        raise ConnectionError("no line")

    text = left.summary(run_id_of(work(return_state=True)))
    assert ": 2 task runs, 2 retried (2 retries)" in text
    assert "*Not read in time: the runs inside it, the run, its states," in text


def test_what_was_not_read_is_said(left, monkeypatch):
    monkeypatch.setattr(reading, "MOST_RUNS", 1)
    monkeypatch.setattr(reading, "has_heard_the_end", lambda *_, **__: False)
    monkeypatch.setattr(ending, "AFTER_A_DEATH", 0.0)

    @resilient_flow(retries=1, task_runner=ProcessPoolTaskRunner(max_workers=1))
    def work():
        fine(1)
        raise ConnectionError("no line")

    text = left.summary(run_id_of(work(return_state=True)))
    assert "*Not read in time: the latest events, which the API had not received yet, task runs after" in text


@resilient_task(retry=QUICK)
def unsteady_elsewhere():
    from prefect.context import TaskRunContext

    if TaskRunContext.get().task_run.run_count < 2:
        raise ConnectionError("no line")


def lose(n: int):
    raise ConnectionError("no line")


@pytest.mark.requirement("004.01")
def test_a_failed_run_says_how_to_go_on_and_what_is_kept(mode, left):
    def work(n: int):
        resilient_task(effect="external", task_run_name="sent")(send)(n)
        resilient_task(retry=None, dead_letter=True, name="lost")(lose)(n, return_state=True)
        raise ConnectionError("no line")

    made = resilient_flow(batch="b-{n}")(mode.function(work))
    state = ran(mode, made, 3)
    text = left.summary(run_id_of(state))
    assert "**restart\\_from\\_last\\_external**: its run failed with NETWORK\\_ERROR (network)" in text
    assert "with batch('b-3'):" in text
    assert section(text, "Dead letters")[0][1] == "lost"
    assert batch_status("b-3").hint.strategy == "restart_from_last_external"


def test_how_far_a_run_is_recovered_by_itself_is_written_on_it():
    policy = RecoveryPolicy(attempts=0)

    state = resilient_flow(recovery=policy)(fails)(return_state=True)
    with get_client(sync_client=True) as client:
        run = client.read_flow_run(state.state_details.flow_run_id)
    assert RECOVERY_TAG in run.tags
    assert RecoveryPolicy.model_validate_json(run.labels[RECOVERY_LABEL]) == policy
    # Whoever asks goes by it, without being told.
    hint = batch_status(run_id_of(state)).hint
    assert hint.strategy == "manual_only"
    assert hint.why == "its run failed with NETWORK_ERROR (network); automatic recovery is off"


def test_an_inner_flow_is_not_recovered_by_itself(left):
    inner = resilient_flow(recovery="auto")(fails)

    @flow
    def outer():
        return inner(return_state=True).state_details.flow_run_id

    inner_id = outer()
    with get_client(sync_client=True) as client:
        assert RECOVERY_TAG not in client.read_flow_run(inner_id).tags
    assert "How to continue" not in left.summary(inner_id)


def test_without_a_store_there_is_a_summary_still(left, monkeypatch):
    monkeypatch.setenv("PREFECT_RESILIENCE_STORE_URL", "postgresql://nobody@127.0.0.1:1/none")

    state = resilient_flow(fails)(return_state=True)
    text = left.summary(run_id_of(state))
    assert "ended **Failed**" in text
    assert "How to continue" not in text


def test_recovery_none_says_nothing(left):
    state = resilient_flow(recovery=None)(fails)(return_state=True)
    assert "How to continue" not in left.summary(run_id_of(state))
    state = resilient_flow(summary=False)(fails)(return_state=True)
    assert left.by(run_id_of(state)) == {}


def test_an_interrupted_run_leaves_its_summary(left, monkeypatch):
    found: list[str] = []
    waits: list[Any] = []
    monkeypatch.setattr(reading, "has_heard_the_end", lambda *given: waits.append(given) or True)

    @resilient_flow
    def work():
        found.append(flow_run.get_id())
        fine(1)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        work()
    assert "ended **Crashed**" in left.summary(found[0])
    assert waits == [], "its own notes are at hand, so nobody is waited for"


def test_no_secret_is_in_a_summary(mode, left):
    planted = ["sk-ant-REDACTED", "correct-horse-battery"]
    register_secret(planted[1])
    plain = task(retries=1, task_run_name=f"read {planted[1]}")(lambda: fail_with(planted))
    tell = task(lambda: {"password": "hunter2", "said": planted[1]})

    def work(key: str):
        tell()
        plain()

    state = ran(mode, resilient_flow(mode.function(work)), planted[0])
    text = left.summary(run_id_of(state))
    whole = text + picture(text) + str(left.by(run_id_of(state)))
    for secret in [*planted, "hunter2"]:
        assert secret not in whole
    assert "ended **Failed**" in text


def fail_with(planted: list[str]):
    raise ValueError(f"key {planted[0]}, word {planted[1]}")


def test_a_run_that_is_run_again_writes_a_new_version(left):
    made: list[int] = []

    @resilient_flow(retries=1)
    def work():
        made.append(1)
        fine(1)
        raise ConnectionError("no line")

    state = work(return_state=True)
    text = left.summary(run_id_of(state))
    assert len(made) == 2
    assert "ended **Failed** in pass 2" in text
    passes = section(text, "Passes")
    assert [row[0] for row in passes] == ["1", "2"]
    assert (
        "- Pass 1: started by a Python program that called the flow; "
        "ended: AwaitingRetry: Flow run encountered an exception: ConnectionError: no line\n"
        "- Pass 2: started by Prefect's own retry of the flow: Flow run encountered an exception"
    ) in text
    assert [row[3:] for row in passes] == [["1", "0", "1 Completed"]] * 2


@pytest.mark.parametrize(
    ("hint", "deployed", "said"),
    [
        ({"strategy": "manual_only", "waiting": ("a b",)}, True, "settle x 'a b' done"),
        ({"strategy": "restart_batch"}, True, "recover x"),
        ({"strategy": "compensate"}, True, "rollback x"),
        ({"strategy": "abandon"}, False, "abandon x"),
        ({"strategy": "manual_only"}, True, "recover x --strategy restart"),
        ({"strategy": "manual_only"}, False, "with batch('x'):"),
    ],
)
def test_every_hint_has_its_commands(hint, deployed, said):
    made = commands(RecoveryHint(why="so", **hint), "x", deployed=deployed)
    assert any(said in command for _, command in made)
