"""The files that `plan` reads and writes: plans, results, pictures. Each error names its file."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ValidationError
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.text import Text

from prefect_resilience.base.policy import nearest_file
from prefect_resilience.base.text import lasting, plural
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.graphs.plans.actions import Actions, ActionSpec, ParameterSpec
from prefect_resilience.graphs.plans.model import Asked, Plan
from prefect_resilience.graphs.plans.pictures.render import plan_to_mermaid, plan_to_svg
from prefect_resilience.graphs.plans.reading.mistakes import Mistake, PlanError
from prefect_resilience.graphs.plans.reading.reading import from_file, from_text
from prefect_resilience.graphs.plans.result import NodeResult, PlanResult
from prefect_resilience.operations.cli import look
from prefect_resilience.operations.cli.look import NUMBER, WORD, printable

STDIN = "-"


class Placed(BaseModel):
    """One mistake of a plan; `place` is empty if the mistake concerns the whole file."""

    place: str
    message: str


class Checked(BaseModel):
    """The result of `plan validate` for one file. `nodes` is None if the file is not a readable plan."""

    file: str
    valid: bool
    actions_checked: bool
    nodes: int | None
    mistakes: list[Placed]

    @property
    def lines(self) -> Iterator[str]:
        """A line for each mistake, or one line if there is none."""
        if self.valid:
            yield f"{self.file}: no mistakes, {plural(self.nodes or 0, 'node')}"
        for mistake in self.mistakes:
            yield line_of(mistake, self.file)


@dataclass(frozen=True)
class PlanSource:
    """A plan and its file; `path` is None for stdin."""

    plan: Plan
    path: Path | None


def read_plan(
    file: str, actions: Actions | None = None, inputs: Mapping[str, Any] | None = None
) -> PlanSource:
    """Read a plan from a file, or from stdin for `-`, and check it for these actions and inputs if given.

    Raises PlanError with every mistake; an unreadable file is one mistake.
    """
    asked = Asked(actions, inputs)
    if file != STDIN:
        return PlanSource(from_file(file, asked), Path(file))
    try:
        text = _stdin()
    except ValueError as error:
        raise PlanError([Mistake("", _why(error))], name_of(file)) from None
    return PlanSource(from_text(text, asked, name_of(file)), None)


def checked(file: str, actions: Actions | None) -> Checked:
    """Find every mistake in one file. With `actions`, check the types and inputs of nodes, too."""
    nodes: int | None = None
    found: Iterable[Mistake] = ()
    try:
        nodes = len(read_plan(file, actions).plan.tasks)
    except PlanError as error:
        found = error.mistakes
    return Checked(
        file=name_of(file),
        valid=nodes is not None,
        actions_checked=actions is not None,
        nodes=nodes,
        mistakes=[placed(mistake, file) for mistake in found],
    )


def name_of(file: str) -> str:
    """The name of a file in sentences."""
    return "stdin" if file == STDIN else file


def placed(mistake: Mistake, file: str) -> Placed:
    """A mistake with its place inside the file. Places of unreadable files begin with the file's name."""
    place, name = mistake.place, name_of(file)
    if place == name or place.startswith(f"{name}, "):
        place = place.removeprefix(name).removeprefix(", ")
    return Placed(place=place, message=printable(mistake.message))


def line_of(mistake: Placed, file: str) -> str:
    """`file: place: message`."""
    return ": ".join(filter(None, (name_of(file), mistake.place, mistake.message)))


def picture(file: str, kind: str, result: str | None) -> str:
    """The plan as mermaid or SVG, with the path of a run if its result is given."""
    plan = read_plan(file).plan
    ran = None if result is None else _read_result(result, plan)
    draw = plan_to_svg if kind == "svg" else plan_to_mermaid
    return draw(plan, ran, added=ran.added if ran else ())


def _read_result(file: str, plan: Plan) -> PlanResult:
    try:
        text = _stdin() if file == STDIN else Path(file).read_text(encoding="utf-8-sig")
    except (OSError, ValueError) as error:
        near = nearest_file(Path(file), (".json",)) if isinstance(error, FileNotFoundError) else ""
        raise ConfigurationError(f"--result {file} cannot be read: {_why(error)}{near}") from None
    try:
        result = PlanResult.model_validate_json(text)
    except ValidationError:
        raise ConfigurationError(
            f"--result {file} is not the result of a plan: `plan run FILE --json` prints one"
        ) from None
    if not result.nodes.keys() & {node.id for node in plan.tasks}:
        raise ConfigurationError(
            f"--result {file} is the result of another plan: the two have no node in common"
        )
    return result


def _stdin() -> str:
    return sys.stdin.buffer.read().decode("utf-8-sig")


def _why(error: Exception) -> str:
    if isinstance(error, UnicodeDecodeError):
        return f"it is not UTF-8 text (byte {error.start})"
    return (getattr(error, "strerror", None) or str(error)).lower()


WHY_LIMIT = 300
STATUSES = ("succeeded", "failed", "handled", "skipped")


def result_table(result: PlanResult) -> RenderableType:
    """A row for each node, in the plan's order."""
    columns = {"status": WORD, "node": 8, "attempts": NUMBER, "duration": NUMBER, "why": 16}
    rows = (
        (
            look.state(node.status),
            name,
            str(node.attempts or ""),
            "" if node.duration is None else lasting(node.duration),
            why(node),
        )
        for name, node in result.nodes.items()
    )
    return look.table(columns, rows)


def why(node: NodeResult) -> str:
    """The error of a failed node and the reason of its status, if there are any."""
    error = node.error.summary() if node.error is not None and node.status != "skipped" else ""
    reasons = [look.safe(text) for text in (error, node.reason) if text]
    both = reasons[:1] if len(reasons) == 2 and reasons[0] in reasons[1] else reasons
    return "; ".join(text if len(text) <= WHY_LIMIT else f"{text[: WHY_LIMIT - 1]}…" for text in both)


def summary(result: PlanResult) -> str:
    """One line: how the plan ended, and the number of nodes by status."""
    statuses = [node.status for node in result.nodes.values()]
    counts = [f"{statuses.count(status)} {status}" for status in STATUSES if status in statuses]
    head = "The plan succeeded" if result.succeeded else "The plan failed"
    return f"{head}: {plural(len(statuses), 'node')}, {', '.join(counts)}."


def actions_list(actions: Iterable[ActionSpec]) -> RenderableType:
    """Each action with its description and its parameters."""
    return Group(*(part for action in actions for part in _action(action)))


def _action(action: ActionSpec) -> Iterator[RenderableType]:
    yield Text(printable(action.name), style=f"bold {look.BLUE}")
    if action.description:
        yield _indented(Text(printable(action.description.split("\n\n")[0])))
    if action.parameters:
        for parameter in action.parameters:
            yield from _parameter(parameter)
    else:
        yield _indented(Text("takes no input", style="dim"))
    yield ""


def _parameter(parameter: ParameterSpec) -> Iterator[RenderableType]:
    """Name and type on one line, the description on the next: a long type needs the width."""
    need = "required" if parameter.required else f"= {json.dumps(parameter.default, default=str)}"
    head = Text(printable(parameter.name), style="bold")
    head.append(f"  {parameter.type or 'any'}  {printable(need)}", style="not bold")
    yield _indented(head)
    if parameter.description:
        yield _indented(Text(printable(parameter.description)), 4)


def _indented(part: RenderableType, columns: int = 2) -> RenderableType:
    return Padding(part, (0, 0, 0, columns))
