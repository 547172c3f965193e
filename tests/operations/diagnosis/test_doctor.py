"""The command as an operator runs it, on a real API, with each thing put wrong and right again."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.settings import PREFECT_API_URL, temporary_settings

from prefect_resilience.operations.cli.app import main
from prefect_resilience.operations.diagnosis import environment, examine
from prefect_resilience.operations.installation import install, uninstall
from prefect_resilience.tasks.edge.policy_block import ResiliencePolicy
from tests.guards.limits.api_proxy import ApiProxy

pytestmark = pytest.mark.slow

SOME_TIME = 90.0
"""Seconds that an event may take to arrive, on whatever machine the tests run."""

SHOP = """
from prefect import flow, task
from prefect.concurrency.sync import concurrency
from prefect_resilience import Fallback, resilient_flow, resilient_task

@task(timeout_seconds=3)
def slow(): ...

@resilient_task(policy="llm-default")
def ask(): ...

@resilient_task(persist_result=False, fallback=Fallback.last_known_good())
def remember(): ...

@resilient_flow(recovery="auto")
def recovered(): ...

@flow(retries=2, persist_result=True)
def kept(): ...

def limited():
    with concurrency("db"): ...

print("said by a module")
"""


@pytest.fixture(autouse=True, scope="module")
def in_prefect(own_prefect_api: None) -> Iterator[None]:
    yield
    uninstall()


@pytest.fixture
def client() -> Iterator[SyncPrefectClient]:
    with get_client(sync_client=True) as made:
        yield made


@pytest.fixture
def doctor(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Callable[..., Any]:
    def run(*words: str) -> tuple[int, str, str]:
        capsys.readouterr()
        monkeypatch.setattr(sys, "argv", ["prefect-resilience", "doctor", *words])
        monkeypatch.setenv("COLUMNS", "160")
        with pytest.raises(SystemExit) as left:
            main()
        out, err = capsys.readouterr()
        return int(left.value.code or 0), out, err

    return run


def test_a_project_is_examined_to_the_end(project: Callable[..., Path], doctor: Callable[..., Any]):
    uninstall()
    file = project(SHOP)
    code, out, err = doctor(f"{file}:recovered", "--json")
    assert code == 1
    told = json.loads(out)
    checks = {one["check"] for one in told["findings"] if str(file) in one["where"]}
    assert checks == {"timeouts", "concurrency", "results", "blocks"}
    assert {"versions", "store", "server", "events", "workers", "installation"} <= set(told["checks"])
    assert "said by a module" in err
    missing = [one for one in told["findings"] if one["check"] == "blocks"]
    assert "block resilience-policy/llm-default not found" in missing[0]["says"]
    # One thing, found by two checks, is told once.
    assert len([one for one in told["findings"] if one["check"] == "timeouts"]) == 1
    results = [one["says"] for one in told["findings"] if one["check"] == "results"]
    assert any("'recovered'" in one for one in results)
    assert any("'remember'" in one for one in results)
    code, out, _ = doctor(str(file.parent))
    assert code == 1
    assert "→ Write strict=True" in out
    assert "problems found by" in out


def test_a_folder_whose_files_name_a_policy_that_no_block_has(project: Callable[..., Path]):
    file = project(SHOP.replace("llm-default", "of-a-folder"))
    (found,) = [one for one in examine([str(file.parent)]).findings if one.check == "blocks"]
    line = file.read_text().split('policy="of-a-folder"')[0].count("\n") + 1
    assert (found.where, found.level) == (f"{file}:{line}", "wrong")
    assert "block resilience-policy/of-a-folder not found" in found.says
    twice = examine([str(file.parent), str(file)]).findings
    assert len([one for one in twice if one.check == "blocks"]) == 1
    ResiliencePolicy(timeout=3).save("of-a-folder")
    assert not [one for one in examine([str(file.parent)]).findings if one.check == "blocks"]


@pytest.mark.timeout(300)
def test_what_is_not_installed_is_told_until_it_is(
    doctor: Callable[..., Any], client: SyncPrefectClient, monkeypatch: pytest.MonkeyPatch
):
    uninstall()
    monkeypatch.setattr(environment, "EVENT_ARRIVES", SOME_TIME)
    # Somebody who has just begun did nothing wrong.
    code, out, _ = doctor()
    assert code == 0
    assert "checks passed, with 1 note." in " ".join(out.split())
    assert "Run `prefect-resilience install --webhook URL` to install them" in " ".join(out.split())
    install(webhook="http://127.0.0.1:9/")
    # What is missing of what was installed is.
    (gone,) = client.read_automations_by_name("prefect-resilience: recover failed runs")
    client.delete_automation(gone.id)
    found = [one for one in examine().findings if one.check == "installation"]
    assert [(one.where, one.level) for one in found] == [(gone.name, "wrong")]
    install(webhook="http://127.0.0.1:9/")
    wrong = [one for one in examine().findings if one.level == "wrong"]
    # Nobody works for the pool here; that is all.
    assert [one.check for one in wrong] == ["workers"]
    assert "prefect worker start --pool resilience" in wrong[0].mend
    client.request(
        "POST", "/work_pools/{name}/workers/heartbeat", path_params={"name": "resilience"}, json={"name": "w"}
    )
    code, out, _ = doctor()
    assert code == 0
    assert "checks passed" in out
    (known,) = client.read_automations_by_name("prefect-resilience: recover crashed runs")
    client.pause_automation(known.id)
    diagnosis = examine()
    assert diagnosis.healthy
    assert [one.says for one in diagnosis.findings if one.check == "automations"] == ["it is disabled"]


def test_a_policy_that_is_there_but_cannot_be_meant(project: Callable[..., Path]):
    ResiliencePolicy(fallback=["nobody"]).save("llm-default", overwrite=True)
    found = [one for one in examine([str(project(SHOP))]).findings if one.check == "blocks"]
    assert "the task has no fallback 'nobody'" in found[0].says
    ResiliencePolicy(timeout=3).save("llm-default", overwrite=True)
    assert not [one for one in examine([str(project(SHOP))]).findings if one.check == "blocks"]


def test_a_server_that_is_away(doctor: Callable[..., Any]):
    with temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}):
        code, out, _ = doctor("--json")
    assert code == 1
    (found,) = [one for one in json.loads(out)["findings"] if one["check"] == "server"]
    assert "is unavailable" in found["says"]
    with temporary_settings({PREFECT_API_URL: None}):
        (found,) = [one for one in examine().findings if one.check == "server"]
    assert "no Prefect server is configured" in found.says


@pytest.mark.timeout(300)
def test_events_that_do_not_arrive(client: SyncPrefectClient, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setattr(environment, "EVENT_ARRIVES", SOME_TIME)
    assert list(environment.events(client)) == []
    monkeypatch.setattr(environment, "EVENT_ARRIVES", 0.0)
    losing = ApiProxy(PREFECT_API_URL.value())
    with (
        closing(losing),
        temporary_settings({PREFECT_API_URL: losing.url}),
        get_client(sync_client=True) as client_of_it,
    ):
        client_of_it.request("POST", "/flow_runs/count", json={})  # from now on it has a CSRF token
        first = losing.asked
        losing.trouble = lambda number: 204 if number == first else None
        (found,) = environment.events(client_of_it)
    assert "automations do not run" in found.says


@pytest.mark.parametrize("skew", [-60.0, 60.0])
def test_a_server_whose_clock_differs(
    client: SyncPrefectClient, monkeypatch: pytest.MonkeyPatch, skew: float
):
    assert list(environment.clock(client)) == []
    real = environment.time.time
    monkeypatch.setattr(environment, "time", type("Clock", (), {"time": staticmethod(lambda: real() - skew)}))
    (found,) = environment.clock(client)
    assert ("ahead of" if skew > 0 else "behind") in found.says


def test_an_automation_whose_deployment_is_gone(client: SyncPrefectClient):
    install(webhook="http://127.0.0.1:9/")
    client.delete_deployment(client.read_deployment_by_name("recover-batch/recover-batch").id)
    gone = [one.where for one in environment.automations(client) if one.level == "wrong"]
    assert gone == ["prefect-resilience: recover crashed runs", "prefect-resilience: recover failed runs"]


@pytest.mark.parametrize(
    ("target", "says"),
    [
        ("no/such/folder", "There is no file or folder 'no/such/folder'"),
        ("no_such_module", "there is no module 'no_such_module', installed or in"),
        ("broken.py", "cannot be imported: ZeroDivisionError"),
    ],
)
def test_what_is_not_there_is_one_sentence(
    doctor: Callable[..., Any], project: Callable[..., Path], target: str, says: str
):
    file = project("1 / 0", "broken.py")
    code, _, err = doctor(str(file) if target == "broken.py" else target)
    assert code == 1
    assert says in err
    assert err.count("\n") == 1
