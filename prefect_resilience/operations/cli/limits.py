"""`prefect-resilience limits ...`: the adaptive limits of a fleet."""

from __future__ import annotations

from cyclopts import App
from rich.console import RenderableType

from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.guards.limits.sharing import LimitSnapshot, get_limits
from prefect_resilience.operations.cli import look, options
from prefect_resilience.operations.cli.look import FIGURES, NUMBER
from prefect_resilience.operations.cli.options import ANSWERING, Answering, explained

app: App = options.group("limits", "Show the adaptive limits of a fleet.")


@app.command(name="list")
def list_limits(*, how: Answering = ANSWERING) -> int:
    """Show every adaptive limit with a name: its number, and how many calls are in flight and waiting.

    Example: prefect-resilience limits list
    """
    url = options.store_url(how.store, circuits=True)
    with explained(url):
        found = get_limits(url)
    nothing = f"There are no adaptive limits in {redact(url)}: one with a name is stored while runs use it."
    return look.answer(found, limits_table(found) if found else nothing, json=how.json)


def limits_table(limits: list[LimitSnapshot]) -> RenderableType:
    """A row for each limit."""
    return look.table(
        {
            "limit": 8,
            "number": NUMBER,
            "in flight": NUMBER,
            "waiting": NUMBER,
            "processes": NUMBER,
            "each": FIGURES,
            "latency": NUMBER,
        },
        (
            [
                one.name,
                str(one.number),
                str(one.in_flight),
                str(one.waiting),
                str(one.processes),
                str(one.least) if one.least == one.most else f"{one.least} to {one.most}",
                f"{one.base:.3g} s" if one.base else "",
            ]
            for one in limits
        ),
    )
