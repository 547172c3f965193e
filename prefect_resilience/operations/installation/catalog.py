"""What there is to install, in one place: the operational flows, and the automations in files."""

from __future__ import annotations

import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from importlib.resources import files
from typing import Any, ClassVar, Literal, cast
from uuid import UUID

import yaml
from prefect import Flow
from prefect.utilities.callables import parameter_schema
from pydantic import BaseModel, ConfigDict

from prefect_resilience import operations
from prefect_resilience.operations import flows

NAME = "prefect-resilience"
"""The name of every deployment, and the tag by which it is found again."""
POOL = "resilience"
"""The work pool where none is named; Prefect keeps names that begin with its own for itself."""
ALERTS = "prefect-resilience-alerts"
"""The notification block that `--webhook` makes."""

UNKNOWN = UUID(int=0)
"""Stands for the id of what a dry run does not make."""

SCHEDULES: Mapping[str, str] = {
    "show-circuits": "*/5 * * * *",
    "report": "5 6 * * *",
    "purge-dead-letters": "25 3 * * *",
    "close-task-runs": "*/10 * * * *",
    "crash-silent-runs": "*/5 * * * *",
    "prune-batches": "45 3 * * 0",
}
"""When a flow runs by itself, as cron in UTC; the others are run by a person or an automation."""


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
        """As Prefect calls it: flow/deployment."""
        return f"{self.name}/{NAME}"

    @property
    def schedule(self) -> str | None:
        return SCHEDULES.get(self.name)

    @property
    def description(self) -> str:
        return self.flow.description or ""

    @cached_property
    def parameters(self) -> dict[str, Any]:
        """The JSON Schema of its parameters, from which the UI makes the form."""
        return parameter_schema(self.flow).model_dump_for_openapi()


PLACEHOLDER = re.compile(r"\$\{([^}]+)\}")


@dataclass(frozen=True)
class AutomationFile:
    """One automation as its file says it. The ids are missing: `${deployment:name}`, `${notification}`."""

    name: str
    text: str

    @property
    def needs(self) -> set[str]:
        """The names of the ids that are missing."""
        return set(PLACEHOLDER.findall(self.text))

    def filled(self, ids: Mapping[str, str]) -> dict[str, Any]:
        """The document with the ids in their places."""
        return yaml.safe_load(PLACEHOLDER.sub(lambda found: f'"{ids[found[1]]}"', self.text))


@functools.cache
def operational_flows() -> tuple[Operation, ...]:
    """Every flow of `prefect_resilience.operations`, by name."""
    found = [
        Operation(cast("Flow[..., Any]", value), f"{operations.__name__}.{name}")
        for name, value in vars(flows).items()
        if isinstance(value, Flow) and not name.startswith("_")
    ]
    return tuple(sorted(found, key=lambda operation: operation.name))


@functools.cache
def automation_files() -> tuple[AutomationFile, ...]:
    """Every automation of the wheel, by the name of its file."""
    folder = files("prefect_resilience.operations.installation") / "automations"
    texts = [
        file.read_text("utf-8")
        for file in sorted(folder.iterdir(), key=lambda file: file.name)
        if file.name.endswith(".yaml")
    ]
    return tuple(AutomationFile(yaml.safe_load(text)["name"], text) for text in texts)


Action = Literal["created", "changed", "unchanged", "kept", "skipped", "removed"]


class InstallationChange(BaseModel):
    """What became of one thing.

    `action`: "kept" is what somebody changed by hand, so that it was left as it is; "skipped" is what is not
    there because something is missing, as `why` says.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)

    kind: Literal["block type", "block", "work pool", "deployment", "automation"]
    name: str
    action: Action
    why: str = ""
