"""What `plan` reads, runs and prints: plans, inputs and results. Each error names its file or option."""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import httpx
from prefect.settings import PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS as STARTUP_SECONDS
from prefect.settings import get_current_settings, temporary_settings
from pydantic import ValidationError
from rich.console import RenderableType
from rich.padding import Padding
from rich.text import Text

from prefect_resilience.base.policy import nearest, nearest_file
from prefect_resilience.base.text import lasting, plural
from prefect_resilience.errors.exceptions import ConfigurationError, ResilienceError
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.graphs.plans.actions import Actions, ActionSpec
from prefect_resilience.graphs.plans.model import Asked, Plan
from prefect_resilience.graphs.plans.pictures.mermaid import plan_to_mermaid
from prefect_resilience.graphs.plans.pictures.svg import plan_to_svg
from prefect_resilience.graphs.plans.reading.mistakes import Mistake, PlanError
from prefect_resilience.graphs.plans.reading.reading import from_file, from_text
from prefect_resilience.graphs.plans.result import NodeResult, PlanFailed, PlanResult
from prefect_resilience.operations.cli import look
from prefect_resilience.operations.cli.look import NUMBER, WORD, printable
from prefect_resilience.operations.flows import run_plan
from prefect_resilience.operations.importing import imported, output_of_others

STDIN = "-"
WHY_LIMIT = 300
STATUSES = ("succeeded", "failed", "handled", "skipped")
_INPUT = re.compile(r"""\binputs(?:\.|\[\\?["'])(\w+)""")
"""Inputs in templates and in the paths of conditions, as JSON: inputs.drug, inputs["drug"]"""
OF_THE_API = ("Failed to reach API", "Timed out while attempting to connect")
"""The prefixes of the messages of Prefect's client when there is no API."""
PATIENCE = 90
"""Seconds for an API that is started for one run: on a busy machine, its database takes more than 20 s."""


# -- plans and their mistakes


def read_plan(file: str, actions: Actions | None = None, inputs: Mapping[str, Any] | None = None) -> Plan:
    """Read a plan from a file, or from stdin for `-`, and check it for these actions and inputs if given.

    Raises PlanError with every mistake; an unreadable file is one mistake.
    """
    asked = Asked(actions, inputs)
    if file != STDIN:
        return from_file(file, asked)
    try:
        text = _stdin()
    except ValueError as error:
        raise PlanError([Mistake("", _why(error))], name_of(file)) from None
    return from_text(text, asked, name_of(file))


def check_file(file: str, actions: Actions | None) -> dict[str, Any]:
    """Find every mistake in one file. With `actions`, check the types and inputs of nodes, too.

    `nodes` is None if the file is not a readable plan; a `place` is empty if the mistake concerns all of it.
    """
    report: dict[str, Any] = {"file": name_of(file), "valid": True, "actions_checked": actions is not None}
    try:
        return {**report, "nodes": len(read_plan(file, actions).tasks), "mistakes": []}
    except PlanError as error:
        return {**report, **mistakes_of(file, error)}


def mistakes_of(file: str, error: PlanError) -> dict[str, Any]:
    """The mistakes of a file. Their places begin with its name only if it is unreadable."""
    name = name_of(file)
    mistakes = [
        {"place": re.sub(f"^{re.escape(name)}(, |$)", "", one.place), "message": printable(one.message)}
        for one in error.mistakes
    ]
    return {"file": name, "valid": False, "nodes": None, "mistakes": mistakes}


def lines_of(report: Mapping[str, Any]) -> Iterator[str]:
    """A line for each mistake, `file: place: message`, or one line if there is none."""
    if report["valid"]:
        yield f"{report['file']}: no mistakes, {plural(report['nodes'], 'node')}"
    for mistake in report["mistakes"]:
        yield ": ".join(filter(None, (report["file"], mistake["place"], mistake["message"])))


def name_of(file: str) -> str:
    """The name of a file in sentences."""
    return "stdin" if file == STDIN else file


def picture(file: str, kind: str, result: str | None) -> str:
    """The plan as mermaid or SVG, with the path of a run if its result is given."""
    plan = read_plan(file)
    ran = None if result is None else _read_result(result, plan)
    draw = plan_to_svg if kind == "svg" else plan_to_mermaid
    return draw(plan, ran)


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


# -- inputs and actions


def read_inputs(pairs: Iterable[str], text: str | None) -> dict[str, Any]:
    """The inputs of `--inputs JSON`, overridden by those of every `--input name=value`.

    A value that is valid JSON is read as JSON (3, true, [1, 2], "3"); anything else is text. Raises
    ConfigurationError for a text without =, a duplicate name, and `--inputs` that is not a JSON object.
    """
    example = """'{"drug": "aspirin"}'"""
    try:
        inputs: Any = _json("{}" if text is None else text)
    except ValueError as error:
        raise ConfigurationError(
            f"--inputs is not JSON ({error}): write it as in --inputs {example}"
        ) from None
    if not isinstance(inputs, dict):
        kind = type(inputs).__name__
        raise ConfigurationError(f"--inputs must be a JSON object, as in {example}, not {kind}")
    values: dict[str, Any] = {}
    for pair in pairs:
        name, sign, value = pair.partition("=")
        name = name.strip()
        if not sign or not name:
            raise ConfigurationError(f"--input {pair!r} must be name=value, as in --input drug=aspirin")
        if name in values:
            raise ConfigurationError(f"--input {name}=... is given twice: give each input once")
        try:
            values[name] = _json(value)
        except ValueError:
            values[name] = value
    return {**inputs, **values}


def _json(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def check_names(inputs: Iterable[str], plan: Plan) -> None:
    """Raise ConfigurationError for an input that the plan neither declares nor uses."""
    names = {*plan.inputs, *_INPUT.findall(plan.model_dump_json())}
    for name in inputs:
        if name not in names:
            near = nearest(name, names) if names else "; it has no inputs"
            raise ConfigurationError(f"the plan has no input {name!r}{near}")


def import_actions(modules: Iterable[str]) -> None:
    """Import each module. Raises ConfigurationError for one that cannot be imported."""
    for name in modules:
        imported(name, f"--actions {name}")


# -- runs


def run(plan: Plan | Path, inputs: Mapping[str, Any]) -> tuple[PlanResult, str]:
    """Run the plan. Returns its result, and why it failed ("" if it did not).

    A plan is passed as a file if it has one, so that subplans are found in the same folder. Raises the error
    that prevented a run.
    """
    seconds = max(PATIENCE, STARTUP_SECONDS.value())
    patient = temporary_settings({STARTUP_SECONDS: seconds})
    try:
        with patient, output_of_others():
            return run_plan(plan, inputs=dict(inputs)), ""
    except PlanFailed as failed:
        return failed.result, redact(str(failed))
    except (RuntimeError, httpx.HTTPError) as error:
        if isinstance(error, RuntimeError) and not str(error).startswith(OF_THE_API):
            raise
        first = (str(error).strip().splitlines() or [type(error).__name__])[0].rstrip(".")
        url = get_current_settings().api.url
        advice = (
            "none is configured, and a temporary one did not start in time; set PREFECT_API_URL"
            if url is None
            else f"check that its server runs, and that PREFECT_API_URL ({url}) is correct"
        )
        raise ResilienceError(f"the Prefect API cannot be used ({first}): {advice}") from error


def why(node: NodeResult) -> str:
    """The error of a failed node and the reason of its status, if there are any."""
    error = node.error.summary() if node.error is not None and node.status != "skipped" else ""
    reasons = [look.safe(text) for text in (error, node.reason) if text]
    both = reasons[:1] if len(reasons) == 2 and reasons[0] in reasons[1] else reasons
    return "; ".join(text if len(text) <= WHY_LIMIT else f"{text[: WHY_LIMIT - 1]}…" for text in both)


NODES: look.Columns[tuple[str, NodeResult]] = {
    "status": (WORD, lambda row: look.state(row[1].status)),
    "node": (8, lambda row: row[0]),
    "attempts": (NUMBER, lambda row: str(row[1].attempts or "")),
    "duration": (NUMBER, lambda row: "" if row[1].duration is None else lasting(row[1].duration)),
    "why": (16, lambda row: why(row[1])),
}
"""The nodes of a result with their names, in the plan's order."""


def summary(result: PlanResult) -> str:
    """One line: how the plan ended, and the number of nodes by status."""
    statuses = [node.status for node in result.nodes.values()]
    counts = [f"{statuses.count(status)} {status}" for status in STATUSES if status in statuses]
    head = "The plan succeeded" if result.succeeded else "The plan failed"
    return f"{head}: {plural(len(statuses), 'node')}, {', '.join(counts)}."


def action_parts(actions: Iterable[ActionSpec]) -> Iterator[RenderableType]:
    """Each action with its description, and its parameters: a line, and its description below."""
    for action in actions:
        yield Text(printable(action.name), style=f"bold {look.BLUE}")
        if action.description:
            yield _indent(printable(action.description.split("\n\n")[0]))
        if not action.parameters:
            yield _indent(Text("takes no input", style="dim"))
        for parameter in action.parameters:
            need = "required" if parameter.required else f"= {json.dumps(parameter.default, default=str)}"
            head = Text(printable(parameter.name), style="bold")
            head.append(f"  {parameter.type or 'any'}  {printable(need)}", style="not bold")
            yield _indent(head)
            if parameter.description:
                yield _indent(printable(parameter.description), 4)
        yield ""


def _indent(part: Text | str, columns: int = 2) -> RenderableType:
    return Padding(part if isinstance(part, Text) else Text(part), (0, 0, 0, columns))
