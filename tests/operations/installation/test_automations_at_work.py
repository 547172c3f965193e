"""What the installed automations do on a real server with a real worker, with nobody acting."""

from __future__ import annotations

import importlib.util
import os
import signal
import sys
from collections.abc import Iterator
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest
from prefect import flow
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolCreate

from prefect_resilience import CircuitBreaker, ErrorBudget, resilient_task
from prefect_resilience.dead_letters import list as list_letters
from prefect_resilience.durable.batches.edge.closing import running_runs, silent_runs
from prefect_resilience.effects import batch_status
from prefect_resilience.guards.circuits.registry import forget_circuits
from prefect_resilience.operations.installation import install
from tests.prefect_runs import until

pytestmark = [pytest.mark.timeout(600), pytest.mark.long, pytest.mark.usefixtures("fleet")]

PROGRAM = '''
import os
import signal
from pathlib import Path

from prefect_resilience import resilient_flow, resilient_task


@resilient_task
def step(number, folder, deaths):
    with Path(folder, "log").open("a") as log:
        log.write(f"{number}\\n")
    died = len(list(Path(folder).glob("died-*")))
    if number == 1 and died < deaths:
        Path(folder, f"died-{died}").touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return number


@resilient_flow(persist_result=True, recovery={"attempts": 1, "backoff": "none"})
def ordeal(folder: str, deaths: int):
    """Its process is killed in the middle, so many times."""
    return sum(step(number, folder, deaths) for number in range(3))


@resilient_flow(persist_result=True, recovery={"attempts": 2, "backoff": "none"})
def setback(folder: str):
    """It fails once, for a reason that passes."""
    if not Path(folder, "failed").exists():
        Path(folder, "failed").touch()
        raise ConnectionError("the warehouse is away")
    return "done"


@resilient_flow(persist_result=True, recovery={"attempts": 1, "backoff": "none"})
def silence(folder: str):
    """The first time it says who it is, and goes on until it is killed."""
    if Path(folder, "pid").exists():
        return "done"
    Path(folder, "pid").write_text(str(os.getpid()))
    signal.pause()
'''


SHOP = """
from contextlib import suppress
from pathlib import Path

from prefect import flow

from prefect_resilience import CircuitBreaker, resilient_task

SERVICE = CircuitBreaker("shop", failure_threshold=1, open_for=0.2, success_threshold=1)


@resilient_task(name="order", retry=None, circuit=SERVICE, dead_letter=True)
def order(item, folder):
    if not Path(folder, "up").exists():
        raise ConnectionError("the shop is away")
    Path(folder, "ordered").write_text(item)


@resilient_task(name="wrong order", retry=None, dead_letter=True)
def wrong_order(item):
    raise ValueError(f"there is no {item}")


@resilient_task(retry=8, circuit=SERVICE)
def look(folder):
    return Path(folder, "up").exists()


@flow
def outage(folder):
    for call in (lambda: order("book", folder), lambda: wrong_order("nothing")):
        with suppress(ConnectionError, ValueError):
            call()


@flow
def after(folder):
    look.with_options(retry={"attempts": 20, "retry_on": ["circuit_open"], "backoff": "constant"})(folder)
"""


@pytest.fixture(autouse=True)
def store(server: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Here as there: the store of the fleet."""
    monkeypatch.setenv("PREFECT_RESILIENCE_STORE_URL", server["PREFECT_RESILIENCE_STORE_URL"])
    forget_circuits()
    yield
    forget_circuits()


@pytest.fixture
def client(server: dict[str, str]) -> Iterator[SyncPrefectClient]:
    with get_client(sync_client=True) as made:
        yield made


@pytest.fixture(scope="module")
def fleet(server: dict[str, str], programs: Any, webhook: Any) -> None:
    """Everything installed, and a worker."""
    install(webhook=webhook.url)
    quick = {"PREFECT_WORKER_QUERY_SECONDS": "1"}
    programs.start("worker", "start", "--type", "process", "--pool", "resilience", **server, **quick)


def deploy(folder: Path, name: str = "ordeal", pool: str = "resilience") -> UUID:
    (folder / "program.py").write_text(PROGRAM)
    source: Any = flow.from_source(str(folder), f"program.py:{name}")
    return source.deploy(name=name, work_pool_name=pool, print_next_steps=False, ignore_warnings=True)


def start(client: SyncPrefectClient, deployment_id: UUID, folder: Path, **given: Any) -> UUID:
    folder.mkdir(exist_ok=True)
    given["folder"] = str(folder)
    return client.create_flow_run_from_deployment(deployment_id, parameters=given).id


def test_a_killed_run_is_recovered_until_the_cap_which_is_told(
    client: SyncPrefectClient, webhook: Any, tmp_path: Path
):
    deployment_id = deploy(tmp_path)
    once = start(client, deployment_id, tmp_path / "once", deaths=1)
    always = start(client, deployment_id, tmp_path / "always", deaths=100)

    # Killed once, it is recovered: the same run goes on behind what was done.
    until(lambda: client.read_flow_run(once).state.is_completed(), 200)
    recovered = client.read_flow_run(once)
    assert recovered.run_count == 2
    assert (tmp_path / "once" / "log").read_text().split() == ["0", "1", "1", "2"]
    audit = batch_status(str(once)).audit
    assert [entry.outcome for entry in audit].count("rescheduled") == 1
    assert all("recover " in entry.by for entry in audit)

    # Killed each time, it is recovered as often as its policy says, and then a person is told why.
    (told,) = until(lambda: webhook.about(str(always)), 200)
    assert "needs a person" in told["subject"]
    assert "it was recovered once and failed again" in told["body"]
    assert client.read_flow_run(always).state.is_crashed()
    assert len(list((tmp_path / "always").glob("died-*"))) == 2
    outcomes = [entry.outcome for entry in batch_status(str(always)).audit]
    assert outcomes.count("rescheduled") == 1
    assert outcomes.count("told") >= 1


def test_a_failed_run_is_recovered(client: SyncPrefectClient, tmp_path: Path):
    run = start(client, deploy(tmp_path, "setback"), tmp_path)
    until(lambda: client.read_flow_run(run).state.is_completed(), 200)
    assert client.read_flow_run(run).run_count == 2
    (entry,) = (one for one in batch_status(str(run)).audit if one.outcome == "rescheduled")
    assert "recover " in entry.by


def test_a_run_whose_machine_is_gone_is_crashed_and_recovered(
    server: dict[str, str], programs: Any, client: SyncPrefectClient, tmp_path: Path
):
    # The operation waits for ten minutes, heartbeats come every three: here it is seconds, at their least.
    often = {"PREFECT_WORKER_QUERY_SECONDS": "1", "PREFECT_FLOWS_HEARTBEAT_FREQUENCY": "30"}
    command = ("worker", "start", "--type", "process", "--pool", "far-away")
    client.create_work_pool(WorkPoolCreate(name="far-away", type="process"))
    worker = programs.start(*command, **server, **often)
    run = start(client, deploy(tmp_path, "silence", "far-away"), tmp_path)
    pid = int(until(lambda: text_of(tmp_path / "pid"), 100))
    until(lambda: [beats for one, beats in running_runs(client) if one.id == run and beats], 100)
    # The machine goes: the worker first, which would tell of its run's end.
    worker.kill()
    worker.wait()
    os.kill(pid, signal.SIGKILL)
    assert client.read_flow_run(run).state.is_running()
    programs.start(*command, **server, **often)
    until(lambda: [one.id for one in silent_runs(client, timedelta(minutes=1))] == [run], 100)
    operation = client.read_deployment_by_name("crash-silent-runs/crash-silent-runs")
    client.create_flow_run_from_deployment(operation.id, parameters={"silent_minutes": 1})
    until(lambda: client.read_flow_run(run).state.is_completed(), 200)
    states = client.read_flow_run_states(run)
    (crashed,) = (state for state in states if state.is_crashed())
    assert "heartbeats stopped" in crashed.message
    assert client.read_flow_run(run).run_count == 2


def text_of(file: Path) -> str:
    return file.read_text() if file.exists() else ""


def test_an_alert_names_the_budget_that_burns(server: dict[str, str], webhook: Any):
    @resilient_task(retry=None, error_budget=ErrorBudget(objective=0.9, name="llm answers"))
    def answer() -> None:
        raise ValueError("no answer")

    @flow
    def answering() -> str:
        for _ in range(14):
            answer(return_state=True)
        return "done"

    run = answering(return_state=True).state_details.flow_run_id
    (alert,) = until(lambda: webhook.about("llm answers"), 100)
    assert alert["subject"] == "Error budget llm answers is burning"
    lines = dict(line.split(": ", 1) for line in alert["body"].splitlines())
    assert lines["Why"].startswith("it burns 10.0 times too fast in the last")
    assert datetime.fromisoformat(lines["Since"].replace("Z", "+00:00")) <= datetime.now(UTC)
    assert lines["Runs"] == "10 of 10 failed in the last 7 days, 90 % must succeed"
    assert lines["Left of the budget"] == "-900.0 %"
    assert lines["Burn rates"].endswith("10.0 in 7d")
    ui = server["PREFECT_API_URL"].removesuffix("/api")
    assert f"{ui}/runs/flow-run/{run}" in alert["body"]


def test_an_alert_names_the_circuit_its_last_error_and_the_run(server: dict[str, str], webhook: Any):
    @resilient_task(retry=None, circuit=CircuitBreaker("llm:primary", failure_threshold=2))
    def ask(key: str) -> None:
        raise TimeoutError(f"no answer, asked with api_key={key}")

    held: list[UUID] = []

    @flow
    def asking() -> None:
        from prefect.runtime import flow_run

        held.append(UUID(str(flow_run.id)))
        for _ in range(3):
            with suppress(Exception):
                ask("sk-ant-REDACTED")

    asking()
    (alert,) = until(lambda: webhook.about("llm:primary"), 100)
    assert alert["subject"] == "Circuit llm:primary is open"
    assert "Circuit: llm:primary" in alert["body"]
    assert "Last error: TimeoutError: no answer" in alert["body"]
    assert "abcdefghij" not in alert["body"]
    ui = server["PREFECT_API_URL"].removesuffix("/api")
    assert f"{ui}/runs/flow-run/{held[0]}" in alert["body"]
    assert alert["text"] == f"{alert['subject']}\n{alert['body']}"


def test_when_a_circuit_closes_the_letters_of_its_outage_are_replayed(
    client: SyncPrefectClient, tmp_path: Path
):
    shop = loaded(tmp_path / "shop.py", SHOP)
    shop.outage(str(tmp_path))
    # Of both outages one letter each; the service answers again, and a probe finds out.
    (tmp_path / "up").touch()
    shop.after(str(tmp_path))
    until(lambda: [letter.status for letter in list_letters(task="order")] == ["replayed"], 100)
    assert [letter.status for letter in list_letters(task="wrong order")] == ["waiting"]
    assert (tmp_path / "ordered").read_text() == "book"


def loaded(file: Path, text: str) -> Any:
    """A user's module, as Python loads it."""
    file.write_text(text)
    spec = importlib.util.spec_from_file_location(f"shop_{uuid4().hex}", file)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module
