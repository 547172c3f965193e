"""The complete examples are projects of their own: a README, public names only, deployments that load."""

import re
from pathlib import Path

import pytest
import yaml
from prefect.flows import load_flow_from_entrypoint

FLOWS = Path(__file__).parents[2] / "flows"
PROJECTS = sorted(readme.parent.name for readme in FLOWS.glob("*/README.md"))


@pytest.mark.parametrize("name", PROJECTS)
def test_its_readme_names_its_files(name: str) -> None:
    text = (FLOWS / name / "README.md").read_text(encoding="utf-8")
    named = set(re.findall(r"\]\(([\w./]+)\)", text))
    there = {file.name for file in (FLOWS / name).iterdir() if file.suffix in (".py", ".yaml")}
    assert there - {"__init__.py"} <= named
    assert all((FLOWS / name / file).exists() for file in named)


@pytest.mark.parametrize("file", sorted(FLOWS.glob("*/prefect.yaml")), ids=lambda file: file.parent.name)
def test_its_deployments_load(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(file.parent)
    for deployment in yaml.safe_load(file.read_text())["deployments"]:
        loaded = load_flow_from_entrypoint(deployment["entrypoint"])
        assert loaded.validate_parameters(deployment.get("parameters", {})) is not None
