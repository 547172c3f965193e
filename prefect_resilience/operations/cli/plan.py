"""`prefect-resilience plan ...`: run, validate and draw plans."""

from __future__ import annotations

import re
import sys
from collections.abc import Generator, Iterable, Iterator, Mapping
from contextlib import contextmanager
from json import dumps
from pathlib import Path
from typing import Annotated, Any

from cyclopts import App, Parameter

from prefect_resilience.base.policy import nearest
from prefect_resilience.base.text import lasting, one_line, plural, printable
from prefect_resilience.durable.batches.decisions import ApiUnavailable
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.graphs.plans.actions import Actions
from prefect_resilience.graphs.plans.model import Plan
from prefect_resilience.graphs.plans.picture import counts_of, plan_to_mermaid, plan_to_svg
from prefect_resilience.graphs.plans.reading.mistakes import Mistake, PlanError
from prefect_resilience.graphs.plans.reading.reading import plan_of_text, read_plan
from prefect_resilience.graphs.plans.result import NodeResult, PlanFailed, PlanResult
from prefect_resilience.operations.cli import look, options
from prefect_resilience.operations.cli.options import Json
from prefect_resilience.operations.users_code import load_module, output_of_others

STDIN = "-"


File = Annotated[
    str, Parameter(allow_leading_hyphen=True, help="The plan, as JSON or YAML; - reads it from stdin.")
]
Modules = Annotated[
    list[str] | None,
    Parameter(
        name="--actions",
        help="A module with the actions, as in my_team.actions, or a .py file; repeat it for several.",
    ),
]
OutputFile = Annotated[str | None, Parameter(name="--output", help="The file to write. Default: stdout.")]

INTERRUPTED = 130
"""The exit code of shells for Ctrl-C."""
WHY_LIMIT = 300
INPUT = re.compile(r"""\binputs(?:\.|\[\\?["'])(\w+)""")
"""Inputs in templates and in the paths of conditions, as JSON: inputs.drug, inputs["drug"]"""
OF_THE_API = ("Failed to reach API", "Timed out while attempting to connect")
"""The prefixes of the messages of Prefect's client when there is no API."""
PATIENCE = 90
"""Seconds for an API that is started for one run: on a busy machine, its database takes more than 20 s."""

app: App = App(name="plan", version_flags=[])


@app.command
def run(
    file: File,
    /,
    *,
    input: list[str] | None = None,
    actions: Modules = None,
    json: Json = False,
) -> int:
    """Run a plan as a Prefect flow, and show the status of each node. The exit code is 1 if it failed.

    Example: prefect-resilience plan run research.json --actions my_team.actions --input drug=aspirin

    Args:
        input: name=value. Valid JSON is read as JSON, any other value as text. Repeat it for several.
    """
    from prefect_resilience.operations.flows import run_plan  # the other commands need no engine

    values, failure = options.json_pairs("--input", input or (), "name=value, as in --input drug=x"), ""
    import_actions(actions)
    try:
        # Mistakes that are visible before a run are reported without one.
        plan = _read_plan(file, Actions.of(), values)
        _check_names(values, plan)
        with _patient_api(), output_of_others():
            # A file is passed as such: a plan without a name is named after its file.
            result = run_plan(plan if file == STDIN else Path(file), inputs=values)
    except PlanError as error:
        return _refuse(file, error)
    except PlanFailed as error:
        result, failure = error.result, redact(str(error))
    except KeyboardInterrupt:
        look.say("Stopped by Ctrl-C: the flow run ended as Crashed.")
        return INTERRUPTED
    look.answer(result, look.table(NODES, result.nodes.items()), summary(result), json=json)
    if failure:
        look.say(failure)
    return 0 if result.succeeded else 1


@app.command
def validate(*files: File, actions: Modules = None, json: Json = False) -> int:
    """Show every mistake of every plan, with its place. The exit code is 1 if there is one.

    With --actions, the types and inputs of the nodes are checked, too.

    Example: prefect-resilience plan validate plans/*.json --actions my_team.actions
    """
    if not files:
        raise ConfigurationError(
            "pass the plans to check, as in `plan validate research.json`; - reads stdin"
        )
    import_actions(actions)
    reports = [_check(file, Actions.of() if actions else None) for file in files]
    look.answer(reports, *(line for report in reports for line in _lines(report)), json=json)
    if not actions:
        look.say(
            "Types and inputs of the nodes were not checked: add the modules of their actions with --actions."
        )
    return 0 if all(report["valid"] for report in reports) else 1


@app.command
def graph(
    file: File,
    /,
    *,
    output_file: OutputFile = None,
    json: Json = False,
) -> int:
    """Draw a plan: as SVG if --output ends in .svg, as Mermaid otherwise.

    Example: prefect-resilience plan graph research.json --output research.svg
    """
    kind = "svg" if (output_file or "").endswith(".svg") else "mermaid"
    try:
        plan = _read_plan(file)
    except PlanError as error:
        return _refuse(file, error)
    picture = plan_to_svg(plan) if kind == "svg" else plan_to_mermaid(plan)
    if output_file is not None:
        look.write_file(Path(output_file), picture)
    if json:
        # The picture itself, or the file with it.
        look.as_json({"format": kind, "output": output_file, "picture": None if output_file else picture})
    elif output_file is None:
        print(picture.rstrip("\n"))
    return 0


@app.command
def schema(*, json: Json = False) -> int:
    """Print the JSON Schema of plans, for editors and for authors of plans.

    Example: prefect-resilience plan schema > plan.schema.json
    """
    # The output is JSON with or without the option.
    print(dumps(Plan.model_json_schema(), indent=2))
    return 0


# -- plans and their mistakes


def _read_plan(file: str, actions: Actions | None = None, inputs: Mapping[str, Any] | None = None) -> Plan:
    """Read a plan from a file or stdin. Raises PlanError with every mistake; an unreadable file is one."""
    if file != STDIN:
        return read_plan(Path(file), actions=actions, inputs=inputs)
    try:
        return plan_of_text(sys.stdin.buffer.read().decode("utf-8-sig"), actions, inputs, "stdin")
    except UnicodeDecodeError as error:
        raise PlanError([Mistake("", f"it is not UTF-8 text (byte {error.start})")], "stdin") from None


def _check(file: str, actions: Actions | None) -> dict[str, Any]:
    """Every mistake in one file. `nodes` is None if the file is not a readable plan."""
    report: dict[str, Any] = {"file": _name(file), "valid": True, "actions_checked": actions is not None}
    try:
        return {**report, "nodes": len(_read_plan(file, actions).tasks), "mistakes": []}
    except PlanError as error:
        return {**report, "valid": False, "nodes": None, "mistakes": _mistakes(file, error)}


def _mistakes(file: str, error: PlanError) -> list[dict[str, str]]:
    """Places and messages. A place begins with the file's name only if the file is unreadable."""
    name = re.compile(f"^{re.escape(_name(file))}(, |$)")
    return [
        {"place": name.sub("", mistake.place), "message": printable(mistake.message)}
        for mistake in error.mistakes
    ]


def _lines(report: Mapping[str, Any]) -> Iterator[str]:
    """A line for each mistake, `file: place: message`, or one line if there is none."""
    if report.get("valid"):
        yield f"{report['file']}: no mistakes, {plural(report['nodes'], 'node')}"
    for mistake in report["mistakes"]:
        yield printable(": ".join(filter(None, (report["file"], mistake["place"], mistake["message"]))))


def _refuse(file: str, error: PlanError) -> int:
    """Print a line on stderr for each mistake of the plan."""
    for line in _lines({"file": _name(file), "mistakes": _mistakes(file, error)}):
        look.say(line)
    return 1


def _name(file: str) -> str:
    return "stdin" if file == STDIN else file


# -- inputs, actions and runs


def _check_names(inputs: Iterable[str], plan: Plan) -> None:
    """Raise ConfigurationError for an input that the plan neither declares nor uses."""
    names = {*plan.inputs, *INPUT.findall(plan.model_dump_json())}
    for name in inputs:
        if name not in names:
            near = nearest(name, names) if names else "; it has no inputs"
            raise ConfigurationError(f"the plan has no input {name!r}{near}")


def import_actions(modules: Iterable[str] | None) -> None:
    """Import each module. Raises ConfigurationError for one that cannot be imported."""
    for name in modules or ():
        load_module(name, f"--actions {name}")


@contextmanager
def _patient_api() -> Generator[None]:
    """Wait for an API that is started for this run; an error that it cannot be used says what to check."""
    import httpx
    from prefect.settings import PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS as STARTUP_SECONDS
    from prefect.settings import temporary_settings

    try:
        with temporary_settings({STARTUP_SECONDS: max(PATIENCE, STARTUP_SECONDS.value())}):
            yield
    except (RuntimeError, httpx.HTTPError) as error:
        if isinstance(error, RuntimeError) and not str(error).startswith(OF_THE_API):
            raise
        why = redact(one_line(str(error).partition("\n")[0] or type(error).__name__).rstrip("."))
        raise ApiUnavailable(
            f"the Prefect API is unavailable ({why}): start a server, and set PREFECT_API_URL to its address"
        ) from error


# -- tables


def why(node: NodeResult) -> str:
    """The error of a failed node and the reason of its status, if there are any."""
    error = node.error.summary() if node.error is not None and node.status != "skipped" else ""
    reasons = [look.safe(text) for text in (error, node.reason) if text]
    both = reasons[:1] if len(reasons) == 2 and reasons[0] in reasons[1] else reasons
    return "; ".join(look.clip(text, WHY_LIMIT) for text in both)


NODES: look.Columns = {
    "status": lambda row: look.state(row[1].status),
    "node": lambda row: row[0],
    "attempts": lambda row: row[1].attempts or None,
    "duration": lambda row: "" if row[1].duration is None else lasting(row[1].duration),
    "why": lambda row: why(row[1]),
}
"""The nodes of a result with their names, in the plan's order."""


def summary(result: PlanResult) -> str:
    """One line: how the plan ended, and the number of nodes by status."""
    head = "The plan succeeded" if result.succeeded else "The plan failed"
    return f"{head}: {plural(len(result.nodes), 'node')}, {counts_of(result)}."
