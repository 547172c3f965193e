"""`plan run`: a plan as a Prefect flow run, and what became of it even if it failed."""

from __future__ import annotations

import io
import logging
import sys
from collections.abc import Generator, Iterable, Mapping
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass
from threading import Lock
from typing import IO, Any, cast

import httpx
from prefect.settings import (
    PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS,
    get_current_settings,
    temporary_settings,
)
from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    SpinnerColumn,
    TextColumn,
    TimeElapsedColumn,
)
from rich.text import Text

from prefect_resilience.errors.exceptions import ResilienceError
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.graphs.plans import result
from prefect_resilience.graphs.plans.result import PlanFailed, PlanResult
from prefect_resilience.operations.cli import output
from prefect_resilience.operations.cli.plan_files import Source
from prefect_resilience.operations.cli.plan_inputs import output_of_others
from prefect_resilience.operations.flows import run_plan

WAITING = "starting"
COLOUR = "#56b4e9"


@contextmanager
def bar() -> Generator[None, None, None]:
    """Show how far the plan is that is run inside this block."""
    console = output.stderr()
    if not (console.is_terminal and console.is_interactive):
        yield
        return
    columns = (
        SpinnerColumn(style=COLOUR),
        BarColumn(complete_style=COLOUR, finished_style=COLOUR, pulse_style=COLOUR),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("{task.description}", markup=False),
    )
    with (
        Progress(*columns, console=console, transient=True, redirect_stdout=False) as drawn,
        _logs_above(console),
    ):
        row = drawn.add_task(WAITING, total=None)

        def told(now: result.Progress) -> None:
            # A plan inside a node has a bar of its own in nobody's sight: its node stands for it here.
            if now.depth == 0:
                drawn.update(row, completed=now.ended, total=now.total, description=_described(now))

        with result.listening(told):
            yield


def _described(now: result.Progress) -> str:
    at_work = f"{now.running} at work" if now.running else ""
    latest = f"{output.printable(now.latest)} has ended" if now.latest else ""
    return Text(", ".join(filter(None, (at_work, latest)))[:80]).plain


class _Above(io.TextIOBase):
    """A file whose lines appear above the bar, which draws itself again below them."""

    def __init__(self, console: Console) -> None:
        self._console = console
        self._begun = ""
        self._lock = Lock()

    def write(self, text: str, /) -> int:
        with self._lock:
            *lines, self._begun = (self._begun + text).split("\n")
        for line in lines:
            self._console.print(Text.from_ansi(line), soft_wrap=True)
        return len(text)

    def writable(self) -> bool:
        return True


@contextmanager
def _logs_above(console: Console) -> Generator[None, None, None]:
    """Have the consoles of Prefect's log, which write to the terminal by themselves, write above the bar."""
    above = _Above(console)
    terminal = (sys.__stderr__, sys.__stdout__)
    swapped = [(own, own.file) for own in _consoles(_loggers()) if own.file in terminal]
    for own, _ in swapped:
        own.file = cast("IO[str]", above)
    try:
        yield
    finally:
        for own, file in swapped:
            own.file = file


def _loggers() -> Iterable[logging.Logger]:
    known = list(logging.Logger.manager.loggerDict.values())
    return [logging.getLogger(), *(logger for logger in known if isinstance(logger, logging.Logger))]


def _consoles(loggers: Iterable[logging.Logger]) -> Iterable[Console]:
    """The rich consoles that log handlers write to, each once."""
    found = {
        id(console): console
        for logger in loggers
        for handler in logger.handlers
        if isinstance(console := getattr(handler, "console", None), Console)
    }
    return found.values()


# How Prefect's client begins what it says when there is no API
OF_THE_API = ("Failed to reach API", "Timed out while attempting to connect")

PATIENCE = 90


@dataclass(frozen=True)
class Ended:
    """The result of a run, and in a sentence why it failed, "" if it did not."""

    result: PlanResult
    failure: str = ""


def run(source: Source, inputs: Mapping[str, Any]) -> Ended:
    """Run the plan to its end, with a bar in a terminal. Raises what kept it from being run at all."""
    # By its file where it has one: plans inside it are found beside it.
    plan = source.plan if source.path is None else source.path
    try:
        with _patient(), bar(), output_of_others():
            return Ended(run_plan(plan, inputs=dict(inputs)))
    except PlanFailed as failed:
        return Ended(failed.result, redact(str(failed)))
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
