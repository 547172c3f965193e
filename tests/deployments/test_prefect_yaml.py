"""deployments/prefect.yaml: what it deploys is what there is, and Prefect takes it as it stands."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import WorkPoolCreate
from prefect.exceptions import ObjectNotFound
from prefect.flows import load_flow_from_entrypoint
from prefect.settings import PREFECT_API_URL

from prefect_resilience.operations.installation import install, uninstall
from prefect_resilience.operations.installation.catalog import POOL, SCHEDULES, operational_flows

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
FILE = ROOT / "deployments" / "prefect.yaml"


def written() -> list[dict[str, Any]]:
    return yaml.safe_load(FILE.read_text())["deployments"]


def operations() -> list[dict[str, Any]]:
    return [one for one in written() if one["pull"] == []]


@pytest.fixture
def client(prefect_api: None) -> Iterator[SyncPrefectClient]:
    uninstall()
    with get_client(sync_client=True) as made:
        yield made
    uninstall()


def test_every_operational_flow_is_in_it_as_it_is_installed():
    schedules = {
        one["entrypoint"]: [each["cron"] for each in one.get("schedules", [])] for one in operations()
    }
    assert schedules == {
        operation.entrypoint: [SCHEDULES[operation.name]] if operation.name in SCHEDULES else []
        for operation in operational_flows()
    }
    assert all(one["work_pool"] == {"name": POOL} for one in operations())


def test_every_example_is_in_it(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.chdir(ROOT)
    examples = [one for one in written() if one not in operations()]
    # What rehearses its own flows needs no deployment.
    files = [file for file in (ROOT / "flows").glob("*.py") if not file.name.startswith("rehearse_")]
    assert {one["entrypoint"].partition(":")[0] for one in examples} >= {
        str(file.relative_to(ROOT)) for file in files if "\n@flow" in file.read_text()
    }
    plans = {one["parameters"]["plan"] for one in examples if "plan" in one.get("parameters", {})}
    assert plans == {str(file.relative_to(ROOT)) for file in (ROOT / "flows" / "plans").iterdir()}
    for one in examples:
        flow = load_flow_from_entrypoint(one["entrypoint"], use_placeholder_flow=False)
        flow.validate_parameters({**one.get("parameters", {})}) if flow.should_validate_parameters else None
        # What is scheduled needs its services, so a person switches it on.
        assert not any(schedule["active"] for schedule in one.get("schedules", []))


@pytest.mark.parametrize("name", ["improved", "questions"])
def test_examples_without_an_address_bring_their_service(
    name: str, prefect_api: None, monkeypatch: pytest.MonkeyPatch, own_store: None
):
    monkeypatch.chdir(ROOT)
    (one,) = [one for one in written() if one["entrypoint"].endswith(f":{name}")]
    assert "parameters" not in one
    assert load_flow_from_entrypoint(one["entrypoint"])(return_state=True).is_completed()


def test_the_others_find_their_services_where_these_are(monkeypatch: pytest.MonkeyPatch):
    addresses = {"bad_day_service 8090": "127.0.0.1:8090", "digest_receivers": "127.0.0.1:8091"}
    for command, address in addresses.items():
        words = [sys.executable, "-u", "-m", *f"flows.{command}".split()]
        with subprocess.Popen(words, cwd=ROOT, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            assert address in process.stdout.readline()
            process.send_signal(signal.SIGINT)
            assert process.wait(60) == 0
        assert f"http://{address}" in FILE.read_text()
        assert f"python -m flows.{command}\n" in FILE.read_text()


@pytest.mark.timeout(400)
def test_prefect_deploys_all_of_it(client: SyncPrefectClient):
    try:
        client.read_work_pool(POOL)
    except ObjectNotFound:
        client.create_work_pool(WorkPoolCreate(name=POOL, type="process"))
    done = subprocess.run(
        [sys.executable, "-m", "prefect", "--no-prompt", "deploy", "--prefect-file", str(FILE), "--all"],
        cwd=ROOT,
        env={**os.environ, "PREFECT_API_URL": str(PREFECT_API_URL.value()), "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for one in written():
        flow = load_flow_from_entrypoint(one["entrypoint"])
        deployed = client.read_deployment_by_name(f"{flow.name}/{one['name']}")
        assert deployed.entrypoint == one["entrypoint"]
        steps = deployed.pull_steps or []
        assert [step.popitem()[1]["directory"] for step in steps] == (
            [] if one in operations() else [str(ROOT)]
        )
        assert [each.schedule.cron for each in deployed.schedules] == [
            each["cron"] for each in one.get("schedules", [])
        ]
        if one not in operations():
            client.delete_deployment(deployed.id)
    # An installation finds them, brings what else it knows of them, and has nothing more to do then.
    assert {one.action for one in install() if one.kind == "deployment"} <= {"changed", "unchanged"}
    assert {one.action for one in install() if one.kind == "deployment"} == {"unchanged"}
