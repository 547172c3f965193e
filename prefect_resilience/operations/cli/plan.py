"""`prefect-resilience plan ...`: run, validate and draw plans, and list the actions for them."""

from __future__ import annotations

import sys
from json import dumps
from pathlib import Path
from typing import Annotated, Literal

from cyclopts import App, Parameter

from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.graphs.plans.actions import BUILT_IN, Actions
from prefect_resilience.graphs.plans.model import Plan
from prefect_resilience.graphs.plans.reading.mistakes import PlanError
from prefect_resilience.operations.cli import look, options, plan_files
from prefect_resilience.operations.cli.look import printable
from prefect_resilience.operations.cli.options import Json
from prefect_resilience.operations.cli.plan_files import import_actions, lines_of


def _no_option(kind: object, value: object) -> None:
    """Only `-` (stdin) may begin with a hyphen; any other such value is a mistyped option."""
    for file in value if isinstance(value, tuple) else (value,):  # pyright: ignore[reportUnknownVariableType]
        if isinstance(file, str) and file.startswith("-") and file != plan_files.STDIN:
            raise ValueError(f"There is no option {file}. For a file of that name, write ./{file}.")


File = Annotated[
    str,
    Parameter(
        allow_leading_hyphen=True,
        validator=_no_option,
        help="The plan, as JSON or YAML; - reads it from stdin.",
    ),
]
Modules = Annotated[
    list[str] | None,
    Parameter(
        name="--actions",
        help="A module with the actions, as in my_team.actions, or a .py file; repeat it for several.",
    ),
]
OutputFile = Annotated[str | None, Parameter(name="--output", help="The file to write. Default: stdout.")]
ResultFile = Annotated[
    str | None,
    Parameter(
        allow_leading_hyphen=True,
        help="The output of `plan run --json`, or - for stdin: the picture then shows the path of that run.",
    ),
]

# The exit code of shells for Ctrl-C
INTERRUPTED = 130

app: App = options.group("plan", "Run, validate and draw plans.")


@app.command
def run(
    file: File,
    /,
    *,
    input: list[str] | None = None,
    inputs: str | None = None,
    actions: Modules = None,
    json: Json = False,
) -> int:
    """Run a plan as a Prefect flow, and show the status of each node. The exit code is 1 if it failed.

    Example: prefect-resilience plan run research.json --actions my_team.actions --input drug=aspirin

    Args:
        input: name=value. Valid JSON is read as JSON, any other value as text. Repeat it for several.
        inputs: All inputs as one JSON object; --input overrides it.
    """
    values = plan_files.read_inputs(input or [], inputs)
    import_actions(actions or [])
    try:
        # Mistakes that are visible before a run are reported without one.
        plan = plan_files.read_plan(file, Actions.of(), values)
        plan_files.check_names(values, plan)
        result, failure = plan_files.run(plan if file == plan_files.STDIN else Path(file), values)
    except PlanError as error:
        return _refused(file, error)
    except KeyboardInterrupt:
        look.say("Stopped by Ctrl-C: the flow run ended as Crashed.")
        return INTERRUPTED
    table = look.table(plan_files.NODES, result.nodes.items())
    look.answer(result, table, plan_files.summary(result), json=json)
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
    import_actions(actions or [])
    reports = [plan_files.check_file(file, Actions.of() if actions else None) for file in files]
    look.answer(reports, *(printable(line) for report in reports for line in lines_of(report)), json=json)
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
    format: Literal["mermaid", "svg"] | None = None,
    output_file: OutputFile = None,
    result: ResultFile = None,
    json: Json = False,
) -> int:
    """Draw a plan; with --result, also the path that a run took.

    Example: prefect-resilience plan graph research.json --output research.svg

    Args:
        format: svg when --output ends in .svg, mermaid otherwise.
    """
    if file == result == "-":
        raise ConfigurationError(
            "stdin can be the plan or its result, but not both: pass one of them as a file"
        )
    kind = format or ("svg" if (output_file or "").endswith(".svg") else "mermaid")
    try:
        picture = plan_files.picture(file, kind, result)
    except PlanError as error:
        return _refused(file, error)
    if output_file is not None:
        look.write_file(Path(output_file), picture)
    if json:
        # The picture itself, or the file with it.
        look.as_json({"format": kind, "output": output_file, "picture": None if output_file else picture})
    elif output_file is None:
        _print(picture)
    return 0


@app.command
def schema(*, json: Json = False) -> int:
    """Print the JSON Schema of plans, for editors and for authors of plans.

    Example: prefect-resilience plan schema > plan.schema.json
    """
    # The output is JSON with or without the option.
    _print(dumps(Plan.model_json_schema(), indent=2))
    return 0


@app.command(name="actions")
def list_actions(*, actions: Modules = None, json: Json = False) -> int:
    """List the actions that the nodes of a plan can use, each with its inputs.

    Example: prefect-resilience plan actions --actions my_team.actions
    """
    import_actions(actions or [])
    specs = Actions.of().specs()
    look.answer(specs, *plan_files.action_parts(specs), json=json)
    if all(spec.name in BUILT_IN for spec in specs):
        look.say(
            'No actions are registered: write @action("name") above a function, and add its module '
            "with --actions."
        )
    return 0


def _refused(file: str, error: PlanError) -> int:
    """Print a line on stderr for each mistake of the plan."""
    for line in lines_of(plan_files.mistakes_of(file, error)):
        look.say(line)
    return 1


def _print(text: str) -> None:
    """Print text on stdout unchanged, whatever the width of the terminal."""
    sys.stdout.write(text.rstrip("\n") + "\n")
