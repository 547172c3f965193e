"""The command `rehearse`: kill a flow at every point, and show what its receivers got."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any
from xml.etree import ElementTree

from cyclopts import Parameter
from pydantic import TypeAdapter
from rich.console import RenderableType

from prefect_resilience.base.text import one_line, plural
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.operations.cli import look
from prefect_resilience.operations.cli.options import Json, Limit
from prefect_resilience.operations.users_code import load_module
from prefect_resilience.testing import Rehearsal, rehearse

SIGNS = {"once": "done", "twice": "wrong", "never": "wrong", "stopped": "unknown"}
"""The sign of each verdict."""
COLUMNS: look.Columns = {
    "": lambda row: look.state(SIGNS[row.verdict], row.verdict),
    **{"thing": "thing", "task": "task", "line": "line", "shown by": "kill"},
}


def rehearse_command(
    flow: str,
    /,
    *,
    with_: Annotated[Path | None, Parameter(name="--with")] = None,
    receiver: str | None = None,
    kills: Limit = 50,
    timeout: Limit = 60,
    only: str | None = None,
    allow_host: list[str] | None = None,
    keep: Path | None = None,
    junit: Path | None = None,
    json: Json = False,
) -> int:
    """Run a flow, kill it at every point where a side effect can be made twice or lost, and run it again.

    The table shows what the receivers got: once, twice, never, or stopped for a person. The exit code is 1
    if anything was sent twice or lost. Connections to other hosts than the loopback are rejected.

    Example: prefect-resilience rehearse billing.py:bill --with bill.json
    Example: prefect-resilience rehearse billing.py:bill --receiver bank.py --only "after request POST /pay"

    Args:
        flow: FILE.py:FLOW or MODULE:FLOW.
        with_: A JSON file with the flow's arguments by name. "{receiver}" in it is the receiver's address.
        receiver: A file or module with a function `receiver()`, which starts the receivers of one case.
        kills: The most points to try; a sample if there are more.
        timeout: Seconds that one run may take.
        only: The one point to try, as it is named in the table.
        allow_host: A host that may be reached; repeat it for several.
        keep: A new folder for the logs and ledgers of all cases.
        junit: A file for the result as JUnit XML.
    """
    result = rehearse(
        flow,
        receiver=None if receiver is None else _receiver_in(receiver),
        kills=kills,
        timeout=timeout,
        allow_hosts=allow_host or (),
        only=only,
        keep=keep,
        parameters={} if with_ is None else _arguments_in(with_),
        say=look.say,
    )
    if junit is not None:
        look.write_file(junit, junit_of(result))
    look.answer(result, *parts(result), json=json)
    return 0 if result.is_proven else 1


def _receiver_in(name: str) -> Any:
    subject = f"--receiver {name}"
    make = getattr(load_module(name, subject), "receiver", None)
    if not callable(make):
        raise ConfigurationError(f"{subject} has no function `receiver`")
    return make


def _arguments_in(path: Path) -> dict[str, Any]:
    try:
        return TypeAdapter(dict[str, Any]).validate_json(path.read_bytes())
    except (OSError, ValueError) as error:
        raise ConfigurationError(f"--with {path} has no JSON object: {one_line(error)}") from None


def parts(result: Rehearsal) -> Iterator[RenderableType]:
    """The result for a person."""
    if result.rows:
        yield look.table(COLUMNS, result.rows)
    for sentence in result.unjudged:
        yield look.finding("wrong", "not judged", sentence, "Try this point alone with --only and --keep.")
    if result.unseen:
        yield look.card({"not seen": result.unseen})
    counted = plural(len(result.rows), "thing")
    points = f"{plural(result.kills, 'kill')} at {result.cases} of {plural(result.points, 'point')}"
    wrong = len(result.twice) + len(result.lost)
    yield f"{counted}, {points}: {f'{wrong} sent twice or lost' if wrong else 'nothing sent twice or lost'}."


def junit_of(result: Rehearsal) -> str:
    """The result as JUnit XML: a test for each thing, and one for each case without a verdict."""
    suite = ElementTree.Element("testsuite", name=f"rehearse {result.flow}")
    for row in result.rows:
        test = ElementTree.SubElement(suite, "testcase", classname=row.task or result.flow, name=row.thing)
        if row.verdict in ("twice", "never"):
            ElementTree.SubElement(test, "failure", message=row.verdict).text = str(row)
        elif row.verdict == "stopped":
            ElementTree.SubElement(test, "system-out").text = str(row)
    for sentence in result.unjudged:
        test = ElementTree.SubElement(suite, "testcase", classname=result.flow, name="not judged")
        ElementTree.SubElement(test, "error", message=sentence)
    failures = len(result.twice) + len(result.lost)
    errors = len(result.unjudged)
    suite.attrib |= {"tests": str(len(suite)), "failures": str(failures), "errors": str(errors)}
    ElementTree.indent(suite)
    return ElementTree.tostring(suite, encoding="unicode", xml_declaration=True)
