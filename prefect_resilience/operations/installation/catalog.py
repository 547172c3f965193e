"""The objects to install: the operational flows, and the automations in files."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from typing import Any, Literal, cast
from uuid import UUID

import yaml
from prefect import Flow
from prefect.utilities.callables import parameter_schema
from pydantic import BaseModel

from prefect_resilience.operations.reports.runs import OWN_TAG

NAME = "prefect-resilience"
POOL = "resilience"
"""The default work pool. Prefect reserves names that begin with "prefect"."""
ALERTS = "prefect-resilience-alerts"
"""The notification block that `--webhook` makes."""

UNKNOWN = UUID(int=0)
"""The id, in a dry run, of an object that does not exist."""

SCHEDULES: Mapping[str, str] = {
    "show-circuits": "*/5 * * * *",
    "report": "5 6 * * *",
    "tune": "35 6 * * 1",
    "purge-dead-letters": "25 3 * * *",
    "close-task-runs": "*/10 * * * *",
    "crash-silent-runs": "*/2 * * * *",
    "prune-batches": "45 3 * * 0",
}
"""Schedules as cron in UTC. Other flows are run by a person or an automation."""


@dataclass(frozen=True)
class Operation:
    """One flow to deploy."""

    flow: Flow[..., Any]
    entrypoint: str

    @property
    def name(self) -> str:
        return self.flow.name

    @property
    def deployment(self) -> str:
        """The full name in Prefect: flow/deployment."""
        return f"{self.name}/{self.name}"

    @property
    def tags(self) -> list[str]:
        """The tag of what the package runs for itself. A plan is the user's."""
        return [] if self.name == "run-plan" else [OWN_TAG]

    @cached_property
    def parameters(self) -> dict[str, Any]:
        """The JSON Schema of its parameters, for the form in the UI."""
        return parameter_schema(self.flow).model_dump_for_openapi()


PLACEHOLDER = re.compile(r"\$\{([^}]+)\}")


@dataclass(frozen=True)
class AutomationFile:
    """One automation from a file, with placeholders for ids: `${deployment:name}`, `${notification}`."""

    name: str
    text: str

    def fill(self, ids: Mapping[str, str]) -> dict[str, Any]:
        """The document with ids in place of the placeholders."""
        return yaml.safe_load(PLACEHOLDER.sub(lambda found: f'"{ids[found[1]]}"', self.text))


@functools.cache
def operational_flows() -> tuple[Operation, ...]:
    """Every flow of `prefect_resilience.operations`, by name."""
    # Imported here: the flows are slow to import, and few commands need them.
    from prefect_resilience.operations import flows

    operations = [
        Operation(cast("Flow[..., Any]", value), f"{flows.__package__}.{name}")
        for name, value in vars(flows).items()
        if isinstance(value, Flow) and not name.startswith("_")
    ]
    return tuple(sorted(operations, key=lambda operation: operation.name))


@functools.cache
def automation_files() -> tuple[AutomationFile, ...]:
    """Every automation of the package, sorted by file name."""
    folder = files("prefect_resilience.operations.installation") / "automations"
    texts = [
        file.read_text("utf-8")
        for file in sorted(folder.iterdir(), key=lambda file: file.name)
        if file.name.endswith(".yaml")
    ]
    return tuple(AutomationFile(yaml.safe_load(text)["name"], text) for text in texts)


Action = Literal["created", "changed", "unchanged", "kept", "skipped", "removed"]


class InstallationChange(BaseModel, frozen=True):
    """The change of one object on the server.

    `action`: "kept" objects were changed by a person and are not touched; "skipped" ones could not be made,
    because something is missing, as `why` says.
    """

    kind: Literal["block type", "block", "work pool", "deployment", "automation"]
    name: str
    action: Action
    why: str = ""
