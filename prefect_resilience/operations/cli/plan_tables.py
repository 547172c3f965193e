"""What became of a plan, and which actions there are, as tables; colours as those of the circuits."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator

from rich.box import SIMPLE_HEAD
from rich.console import Group, RenderableType
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.graphs.plans.actions import ActionSpec, ParameterSpec
from prefect_resilience.graphs.plans.result import NodeResult, PlanResult
from prefect_resilience.operations.cli.output import printable

# Signs that every terminal has, and the colours of the pictures.
SIGNS = {"succeeded": "✓", "failed": "✗", "handled": "!", "skipped": "-"}
COLOURS = {"succeeded": "#009e73", "failed": "bold #d55e00", "handled": "#e69f00", "skipped": "#999999"}
WHY_LIMIT = 300


def result_table(result: PlanResult) -> RenderableType:
    """A row for each node, in the plan's order."""
    table = Table(box=SIMPLE_HEAD, collapse_padding=True, pad_edge=False, header_style="bold")
    table.add_column("status", no_wrap=True)
    table.add_column("node", overflow="fold", min_width=8)
    table.add_column("attempts", justify="right", no_wrap=True)
    table.add_column("duration", justify="right", no_wrap=True)
    table.add_column("why", overflow="fold", min_width=16)
    for name, node in result.nodes.items():
        table.add_row(
            status_text(node.status),
            Text(printable(name)),
            Text(str(node.attempts or "")),
            Text("" if node.duration is None else duration(node.duration)),
            Text(why(node)),
        )
    return table


def status_text(status: str) -> Text:
    """The status in a word, with its sign and colour."""
    return Text(f"{SIGNS.get(status, ' ')} {status}", style=COLOURS.get(status, ""))


def why(node: NodeResult) -> str:
    """The error of a node that failed, and the reason of what became of it, as far as there are any."""
    error = node.error.summary() if node.error is not None and node.status != "skipped" else ""
    told = [printable(redact(text)) for text in (error, node.reason) if text]
    both = told[:1] if len(told) == 2 and told[0] in told[1] else told
    return "; ".join(text if len(text) <= WHY_LIMIT else f"{text[: WHY_LIMIT - 1]}…" for text in both)


def duration(seconds: float) -> str:
    """Seconds as a person reads them: "35 ms", "1.2 s", "90 s", "5 min"."""
    if seconds < 1:
        return f"{seconds * 1000:.0f} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    return f"{seconds:.0f} s" if seconds < 120 else f"{seconds / 60:.0f} min"


def summary(result: PlanResult) -> str:
    """How it ended and how many nodes ended in which way, in a line."""
    statuses = [node.status for node in result.nodes.values()]
    counts = [f"{statuses.count(status)} {status}" for status in SIGNS if status in statuses]
    nodes = "1 node" if len(statuses) == 1 else f"{len(statuses)} nodes"
    head = "The plan succeeded" if result.succeeded else "The plan failed"
    return f"{head}: {nodes}, {', '.join(counts)}."


def actions_list(actions: Iterable[ActionSpec]) -> RenderableType:
    """Each action with its description and its parameters."""
    return Group(*(part for action in actions for part in _action(action)))


def _action(action: ActionSpec) -> Iterator[RenderableType]:
    yield Text(printable(action.name), style="bold #56b4e9")
    if action.description:
        yield _indented(Text(printable(action.description.split("\n\n")[0])))
    if action.parameters:
        for parameter in action.parameters:
            yield from _parameter(parameter)
    else:
        yield _indented(Text("takes no input", style="dim"))
    yield ""


def _parameter(parameter: ParameterSpec) -> Iterator[RenderableType]:
    """A line for what it is, and one for its description: beside each other, a long type leaves no room."""
    need = "required" if parameter.required else f"= {json.dumps(parameter.default, default=str)}"
    head = Text(printable(parameter.name), style="bold")
    head.append(f"  {parameter.type or 'any'}  {printable(need)}", style="not bold")
    yield _indented(head)
    if parameter.description:
        yield _indented(Text(printable(parameter.description)), 4)


def _indented(part: RenderableType, columns: int = 2) -> RenderableType:
    return Padding(part, (0, 0, 0, columns))
