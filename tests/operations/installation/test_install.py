"""What is brought onto a server, once and again, and what people do to it in between."""

import json
import sys
from collections.abc import Iterator
from typing import Any

import pytest
from prefect.blocks.notifications import CustomWebhookNotificationBlock
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.client.schemas.actions import DeploymentUpdate, WorkPoolCreate
from prefect.events.schemas.automations import AutomationCore
from prefect.exceptions import ObjectNotFound
from prefect.settings import PREFECT_API_URL, temporary_settings

from prefect_resilience.durable.batches.decisions import ApiUnavailable
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.operations import installation as installing
from prefect_resilience.operations.installation import InstallationChange, install, uninstall, with_mark
from prefect_resilience.operations.installation.catalog import (
    ALERTS,
    SCHEDULES,
    automation_files,
    operational_flows,
)
from prefect_resilience.tasks.edge.policy_block import ResiliencePolicy

pytestmark = pytest.mark.slow

WEBHOOK = "http://127.0.0.1:9/hooks/secret-part"
RECOVER = "prefect-resilience: recover crashed runs"
ALERT = "prefect-resilience: alert when a circuit opens"


@pytest.fixture(autouse=True, scope="module")
def in_prefect(own_prefect_api: None) -> Iterator[None]:
    yield
    uninstall()


@pytest.fixture
def new(in_prefect: None) -> None:
    """A server that has nothing of ours."""
    uninstall()


@pytest.fixture
def installed(in_prefect: None) -> None:
    """A server that has everything, whatever a test did to it before."""
    install(webhook=WEBHOOK, work_pool="resilience", reset=True)


@pytest.fixture
def client() -> Iterator[SyncPrefectClient]:
    with get_client(sync_client=True) as made:
        yield made


def actions(changes: list[InstallationChange]) -> set[str]:
    return {change.action for change in changes}


def of(changes: list[InstallationChange], name: str) -> InstallationChange:
    (found,) = [change for change in changes if change.name == name]
    return found


def automation(client: SyncPrefectClient, name: str) -> Any:
    (found,) = client.read_automations_by_name(name)
    return found


def edit(client: SyncPrefectClient, there: Any, **changes: Any) -> None:
    """Change an automation, as the UI does."""
    written = there.model_dump(exclude={"id", "owner_resource"})
    client.update_automation(there.id, AutomationCore(**{**written, **changes}))


def test_the_second_time_nothing_changes(new: None, client: SyncPrefectClient):
    first = install(webhook=WEBHOOK)
    assert actions(first) <= {"created", "unchanged"}
    assert {change.name for change in first if change.kind == "automation"} == {
        file.name for file in automation_files()
    }
    before = everything(client)
    assert actions(install(webhook=WEBHOOK)) == {"unchanged"}
    assert actions(install()) == {"unchanged"}
    assert everything(client) == before


def everything(client: SyncPrefectClient) -> list[Any]:
    """What the server has, with the time of the last change of each thing."""
    return [
        sorted((one["id"], one["updated"]) for one in client.request("POST", route, json={}).json())
        for route in ("/automations/filter", "/deployments/filter", "/work_pools/filter")
    ]


def test_every_operational_flow_is_deployed_from_the_wheel(installed: None, client: SyncPrefectClient):
    for operation in operational_flows():
        deployed = client.read_deployment_by_name(operation.deployment)
        assert deployed.pull_steps == []
        assert deployed.entrypoint == operation.entrypoint
        assert deployed.work_pool_name == "resilience"
        assert deployed.description
        assert deployed.tags == ([] if operation.name == "run-plan" else ["prefect-resilience"])
        assert deployed.parameter_openapi_schema == operation.parameters
        crons = [one.schedule.cron for one in deployed.schedules]
        cron = SCHEDULES.get(operation.name)
        assert crons == ([cron] if cron else [])


def test_a_flow_without_its_library_is_left_out(
    new: None, client: SyncPrefectClient, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setitem(sys.modules, "numpy", None)  # as Python itself marks what cannot be imported
    change = of(install(webhook=WEBHOOK), "tune/tune")
    assert (change.action, change.why) == ("skipped", installing.NEEDS_NUMPY)
    with pytest.raises(ObjectNotFound):
        client.read_deployment_by_name("tune/tune")


def test_an_automation_that_was_deleted_comes_back_alone(installed: None, client: SyncPrefectClient):
    client.delete_automation(automation(client, RECOVER).id)
    changes = install(webhook=WEBHOOK)
    assert [change.name for change in changes if change.action != "unchanged"] == [RECOVER]
    assert of(changes, RECOVER).action == "created"
    assert automation(client, RECOVER).enabled


def test_an_automation_that_was_switched_off_stays_off(installed: None, client: SyncPrefectClient):
    client.pause_automation(automation(client, RECOVER).id)
    assert of(install(), RECOVER).model_dump()["why"] == "disabled by a person"
    # It is brought up to date nevertheless: here, its deployment is another one.
    client.delete_deployment(client.read_deployment_by_name("recover-batch/recover-batch").id)
    assert of(install(), RECOVER).action == "changed"
    there = automation(client, RECOVER)
    assert not there.enabled
    now = client.read_deployment_by_name("recover-batch/recover-batch").id
    assert there.actions[0].deployment_id == now


def test_an_automation_that_somebody_changed_is_kept_and_told(installed: None, client: SyncPrefectClient):
    there = automation(client, ALERT)
    trigger = there.trigger.model_copy(update={"threshold": 3})
    edit(client, there, trigger=trigger)
    changes = install(webhook=WEBHOOK)
    assert of(changes, ALERT).action == "kept"
    assert "--reset" in of(changes, ALERT).why
    assert automation(client, ALERT).trigger.threshold == 3
    assert of(install(reset=True), ALERT).action == "changed"
    assert automation(client, ALERT).trigger.threshold == 1
    assert actions(install()) == {"unchanged"}


def test_a_dry_run_does_nothing(new: None, client: SyncPrefectClient):
    before = everything(client)
    changes = install(dry_run=True, webhook=WEBHOOK)
    assert "created" in actions(changes)
    assert everything(client) == before
    install(webhook=WEBHOOK)
    before = everything(client)
    assert actions(uninstall(dry_run=True)) <= {"removed", "kept"}
    assert everything(client) == before


def test_without_anybody_to_alert_the_alerts_are_left_out(new: None, client: SyncPrefectClient):
    changes = install()
    assert of(changes, ALERT).action == "skipped"
    assert "--webhook" in of(changes, ALERT).why
    assert of(install(webhook=WEBHOOK), ALERT).action == "created"


def test_the_address_of_a_webhook_is_kept_as_a_secret(installed: None, client: SyncPrefectClient):
    document = client.read_block_document_by_name(ALERTS, "custom-webhook", include_secrets=False)
    assert "secret-part" not in json.dumps(document.data)
    other = f"{WEBHOOK}/two"
    assert of(install(webhook=other), f"custom-webhook/{ALERTS}").action == "changed"
    block = CustomWebhookNotificationBlock.load(ALERTS)
    assert block.secrets.get_secret_value()["url"] == other
    assert block._build_request_args('said "no"', "Open")["json"] == {
        "subject": "Open",
        "body": 'said "no"',
        "text": 'Open\nsaid "no"',
    }


def test_an_existing_block_can_be_alerted_through(new: None, client: SyncPrefectClient):
    CustomWebhookNotificationBlock(name="night", url="http://127.0.0.1:9/").save("night", overwrite=True)
    install(notification_block="custom-webhook/night")
    block_id = client.read_block_document_by_name("night", "custom-webhook").id
    assert automation(client, ALERT).actions[0].block_document_id == block_id
    assert actions(install()) == {"unchanged"}


def test_a_pool_can_be_named_and_is_kept(new: None, client: SyncPrefectClient):
    install(work_pool="night")
    deployed = client.read_deployment_by_name("recover-batch/recover-batch")
    assert deployed.work_pool_name == "night"
    assert actions(install()) <= {"unchanged", "skipped"}
    changes = install(work_pool="day")
    assert {change.action for change in changes if change.kind == "deployment"} == {"changed"}
    client.delete_work_pool("night")
    client.delete_work_pool("day")


def test_a_schedule_that_somebody_changed_stays(installed: None, client: SyncPrefectClient):
    name = "prune-batches/prune-batches"
    deployed = client.read_deployment_by_name(name)
    client.update_deployment(deployed.id, DeploymentUpdate(parameters={"older_than_days": 30.0}))
    schedule = deployed.schedules[0]
    client.update_deployment_schedule(deployed.id, schedule.id, active=False)
    assert of(install(), name).action == "unchanged"
    now = client.read_deployment_by_name(name)
    assert now.parameters == {"older_than_days": 30.0}
    assert not now.schedules[0].active


def test_an_older_versions_deployment_is_brought_up_to_date(installed: None, client: SyncPrefectClient):
    name = "prune-batches/prune-batches"
    deployed = client.read_deployment_by_name(name)
    client.update_deployment(deployed.id, DeploymentUpdate(description="old", tags=["mine"]))
    changed = of(install(), name)
    assert (changed.action, changed.why) == ("changed", "description, tags")
    assert client.read_deployment_by_name(name).tags == ["mine", "prefect-resilience"]


def test_what_is_installed_no_longer_is_taken_away_unless_somebody_changed_it(
    installed: None, client: SyncPrefectClient
):
    there = automation(client, RECOVER)
    client.delete_automation(there.id)
    for name, threshold in (("old and untouched", 1), ("old and changed", 2)):
        core = AutomationCore(**{**there.model_dump(exclude={"id"}), "name": name, "description": ""})
        made = with_mark(core)
        made.trigger.threshold = threshold
        client.create_automation(made)
    changes = install()
    assert of(changes, "old and untouched").action == "removed"
    names = {one.name for one in client.read_automations()}
    assert "old and changed" in names
    uninstall()
    assert "old and changed" not in {one.name for one in client.read_automations()}


def test_uninstalling_leaves_what_is_somebody_elses(installed: None, client: SyncPrefectClient):
    client.create_work_pool(WorkPoolCreate(name="mine", type="process"))
    ResiliencePolicy(timeout=3).save("mine", overwrite=True)
    changes = uninstall()
    assert of(changes, "Resilience Policy").action == "kept"
    assert client.read_work_pool("mine")
    assert client.read_block_document_by_name("mine", "resilience-policy")
    assert not [one for one in client.read_automations() if "resilience" in one.name]
    client.delete_block_document(client.read_block_document_by_name("mine", "resilience-policy").id)
    client.delete_work_pool("mine")
    assert {change.name for change in uninstall()} == {"Resilience Policy"}
    assert [change.action for change in uninstall()] in ([], ["kept"])


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"webhook": WEBHOOK, "notification_block": "a/b"}, "both a webhook and a notification block"),
        ({"webhook": "night"}, "the webhook is not a URL: write http://... or https://..."),
        ({"notification_block": "night"}, "write slug/name, as in slack-webhook/night"),
        ({"notification_block": "slack-webhook/nobody"}, "there is no block 'slack-webhook/nobody'"),
    ],
)
def test_what_cannot_be_meant_is_one_sentence(options: dict[str, Any], says: str):
    with pytest.raises(ConfigurationError, match=says):
        install(**options)


def test_a_server_that_is_away_or_refuses_is_one_sentence():
    with pytest.raises(ApiUnavailable, match="reserved for internal use"):
        install(work_pool="prefect-pool")
    with (
        temporary_settings({PREFECT_API_URL: "http://127.0.0.1:9/api"}),
        pytest.raises(ApiUnavailable, match=r"is unavailable .*: start a server"),
    ):
        install()


def test_the_command_prints_a_row_for_each_thing(capsys: pytest.CaptureFixture[str], monkeypatch: Any):
    from prefect_resilience.operations.cli.app import main

    monkeypatch.setenv("COLUMNS", "160")

    def run(*words: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["prefect-resilience", "install", *words])
        with pytest.raises(SystemExit) as left:
            main()
        out, err = capsys.readouterr()
        return int(left.value.code or 0), out, err

    code, out, _ = run("--webhook", WEBHOOK)
    assert code == 0
    assert "created" in out
    assert "recover crashed runs" in out
    assert "secret-part" not in out
    code, out, _ = run("--json")
    assert {row["action"] for row in json.loads(out)} == {"unchanged"}
    code, out, _ = run("--uninstall", "--dry-run")
    assert "dry run, nothing was changed" in out
    code, _, err = run("--uninstall", "--webhook", WEBHOOK)
    assert code == 1
    assert "--uninstall can be combined only with" in err
    code, out, _ = run("--uninstall")
    assert "removed" in out
    code, out, _ = run("--uninstall")
    # A policy that somebody wrote keeps its block's type.
    assert "nothing to remove" in out or "kept" in out
