"""`plan run`: a plan as a Prefect flow run, and what became of it even if it failed."""

from __future__ import annotations

import logging
import sys
from collections.abc import Generator, Iterable, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from typing import IO, Any, cast

import httpx
from prefect.settings import (
    PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS,
    get_current_settings,
    temporary_settings,
)
from rich.console import Console
from rich.file_proxy import FileProxy
from rich.progress import Progress, SpinnerColumn, TimeElapsedColumn
from rich.text import Text

from prefect_resilience.errors.exceptions import ResilienceError
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.graphs.plans import result
from prefect_resilience.graphs.plans.failures import PlanFailed
from prefect_resilience.graphs.plans.result import PlanResult
from prefect_resilience.operations.cli import look, output
from prefect_resilience.operations.cli.plan_files import PlanSource
from prefect_resilience.operations.cli.plan_inputs import output_of_others
from prefect_resilience.operations.flows import run_plan

WAITING = "starting"


@contextmanager
def bar() -> Generator[None, None, None]:
    """Show how far the plan is that is run inside this block."""
    console = output.stderr()
    if not (console.is_terminal and console.is_interactive):
        yield
        return
    columns = (SpinnerColumn(style=look.BLUE), *look.bar_columns(), TimeElapsedColumn())
    with (
        Progress(*columns, console=console, transient=True, redirect_stdout=False) as drawn,
        _logs_above(console),
    ):
        row = drawn.add_task(WAITING, total=None)

        def update(now: result.Progress) -> None:
            # A plan inside a node counts as that node.
            if now.depth == 0:
                drawn.update(row, completed=now.ended, total=now.total, description=_described(now))

        with result.listening(update):
            yield


def _described(now: result.Progress) -> str:
    at_work = f"{now.running} at work" if now.running else ""
    latest = f"{look.printable(now.latest)} has ended" if now.latest else ""
    return Text(", ".join(filter(None, (at_work, latest)))[:80]).plain


@contextmanager
def _logs_above(console: Console) -> Generator[None, None, None]:
    """Have the consoles of Prefect's log, which write to the terminal by themselves, write above the bar."""
    terminal = (sys.__stderr__, sys.__stdout__)
    swapped = [(own, own.file) for own in _log_consoles() if own.file in terminal]
    for own, _ in swapped:
        own.file = cast("IO[str]", FileProxy(console, own.file))
    try:
        yield
    finally:
        for own, file in swapped:
            own.file = file


def _log_consoles() -> Iterable[Console]:
    """The rich consoles that log handlers write to, each once."""
    known = [logging.getLogger(name) for name in list(logging.root.manager.loggerDict)]
    handlers = [handler for logger in (logging.root, *known) for handler in logger.handlers]
    consoles = [getattr(handler, "console", None) for handler in handlers]
    return {id(console): console for console in consoles if isinstance(console, Console)}.values()


# How Prefect's client begins what it says when there is no API
OF_THE_API = ("Failed to reach API", "Timed out while attempting to connect")

PATIENCE = 90


@dataclass(frozen=True)
class PlanEnd:
    """The result of a run, and in a sentence why it failed, "" if it did not."""

    result: PlanResult
    failure: str = ""


def run(source: PlanSource, inputs: Mapping[str, Any]) -> PlanEnd:
    """Run the plan to its end, with a bar in a terminal. Raises what kept it from being run at all."""
    # By its file where it has one: plans inside it are found beside it.
    plan = source.plan if source.path is None else source.path
    try:
        with _patient(), bar(), output_of_others():
            return PlanEnd(run_plan(plan, inputs=dict(inputs)))
    except PlanFailed as failed:
        return PlanEnd(failed.result, redact(str(failed)))
    except (RuntimeError, httpx.HTTPError) as error:
        if isinstance(error, RuntimeError) and not str(error).startswith(OF_THE_API):
            raise
        raise ResilienceError(f"the Prefect API cannot be used ({_short(error)}): {_advice()}") from error


def _patient() -> AbstractContextManager[Any]:
    """An API that is started for one run makes its database first: where much goes on, more than 20 s."""
    seconds = max(PATIENCE, PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS.value())
    return temporary_settings({PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS: seconds})


def _short(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return redact(lines[0].rstrip(".") if lines else type(error).__name__)


def _advice() -> str:
    url = get_current_settings().api.url
    if url is None:
        return "none is configured, and one that is started here takes too long; set PREFECT_API_URL"
    return f"check that its server runs, and that PREFECT_API_URL ({redact(url)}) is right"
