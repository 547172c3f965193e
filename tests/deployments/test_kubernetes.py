"""deployments/kubernetes: what prefect-kubernetes makes of it is a job that Kubernetes would take."""

import json
from pathlib import Path
from typing import Any

import kubernetes_asyncio.client as kubernetes
import prefect.settings
import pytest
import yaml
from prefect.client.schemas.objects import FlowRun
from prefect_kubernetes.worker import KubernetesWorkerJobConfiguration

from prefect_resilience.base.edge.current_settings import GRACE_SECONDS
from prefect_resilience.settings import ResilienceSettings

FOLDER = Path(__file__).parents[2] / "deployments" / "kubernetes"
TEMPLATE = json.loads((FOLDER / "base-job-template.json").read_text())
SETTINGS = yaml.safe_load((FOLDER / "settings.yaml").read_text())


async def job(**values: Any) -> dict[str, Any]:
    made = await KubernetesWorkerJobConfiguration.from_template_and_values(TEMPLATE, values)
    made.prepare_for_flow_run(FlowRun(name="nightly", flow_id="5c3a1b9e-0000-4000-8000-000000000000"))
    return made.job_manifest


def unknown_fields(value: Any, kind: str, path: str = "") -> list[str]:
    """The fields of a manifest that Kubernetes' own model does not have."""
    if kind.startswith("list[") and isinstance(value, list):
        return [one for item in value for one in unknown_fields(item, kind[5:-1], f"{path}[]")]
    model = getattr(kubernetes, kind, None)
    if model is None or not isinstance(value, dict):
        return []
    kinds = {name: model.openapi_types[ours] for ours, name in model.attribute_map.items()}
    wrong = [f"{path}.{name}" for name in value if name not in kinds]
    return wrong + [
        one
        for name, part in value.items()
        if name in kinds
        for one in unknown_fields(part, kinds[name], f"{path}.{name}")
    ]


@pytest.mark.api
async def test_the_job_of_a_flow_run():
    manifest = await job()
    assert unknown_fields(manifest, "V1Job") == []
    assert unknown_fields({"spec": {"backofLimit": 0}}, "V1Job") == [".spec.backofLimit"]
    spec = manifest["spec"]["template"]["spec"]
    assert manifest["spec"]["backoffLimit"] == 0
    assert spec["terminationGracePeriodSeconds"] == 60
    assert TEMPLATE["variables"]["properties"]["grace_seconds"]["minimum"] >= GRACE_SECONDS + 10
    (container,) = spec["containers"]
    assert container["image"] == "prefect-resilience:0.2.0"
    assert container["envFrom"] == [{"secretRef": {"name": SETTINGS["metadata"]["name"]}}]
    assert container["args"] == ["prefect", "flow-run", "execute"]
    assert container["resources"]["limits"] == {"cpu": "500m", "memory": "1Gi"}


@pytest.mark.api
async def test_what_a_deployment_sets():
    manifest = await job(image="shop:7", memory="4Gi", env={"SHOP": "north"}, settings_secret="shop")
    (container,) = manifest["spec"]["template"]["spec"]["containers"]
    assert (container["image"], container["resources"]["limits"]["memory"]) == ("shop:7", "4Gi")
    assert {"name": "SHOP", "value": "north"} in container["env"]
    assert container["envFrom"] == [{"secretRef": {"name": "shop"}}]


def test_every_variable_is_used():
    for name in TEMPLATE["variables"]["properties"]:
        assert "{{ " + name + " }}" in json.dumps(TEMPLATE["job_configuration"])


@pytest.mark.parametrize("name", SETTINGS["stringData"])
def test_the_secret_has_settings_that_exist(name: str):
    ours = name.removeprefix("PREFECT_RESILIENCE_").lower()
    assert ours in ResilienceSettings.__dataclass_fields__ or hasattr(prefect.settings, name)
