"""`prefect-resilience runs ...`: the flow runs that run or are parked, and how to wake parked ones."""

from __future__ import annotations

import time
from typing import Any

from cyclopts import App
from pydantic import BaseModel

from prefect_resilience.base.edge.current_settings import api_url
from prefect_resilience.base.policy import nearest
from prefect_resilience.base.process import user_of_host
from prefect_resilience.base.text import plural, printable, utc_text
from prefect_resilience.durable.batches.edge.closing import list_running
from prefect_resilience.durable.batches.edge.flow_runs import find_run, find_runs
from prefect_resilience.durable.batches.edge.parking import list_parked, wake
from prefect_resilience.durable.batches.parked import PARKED, ParkedRun
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.operations.cli import look
from prefect_resilience.operations.cli.options import ANSWERING, Answering, Limit

app: App = App(name="runs", version_flags=[])


class RunRow(BaseModel, frozen=True):
    """A flow run that runs or is parked. Times are seconds since the epoch.

    seconds_silent: the age of the last heartbeat of a running run; None if it sent none. until, circuit, why:
    when a parked run goes on, the circuit that it waits for, and why it parked.
    """

    flow_run_id: str
    name: str
    state: str
    since: float
    seconds_silent: float | None = None
    until: float | None = None
    circuit: str | None = None
    why: str = ""


COLUMNS: look.Columns = {
    **{"state": "state", "run": "name", "id": "flow_run_id", "since": lambda row: look.cell("at", row.since)},
    "heartbeat": lambda row: row.seconds_silent and look.cell("at", time.time() - row.seconds_silent),
    "goes on": lambda row: look.cell("at", row.until),
    **{"circuit": "circuit", "why": "why"},
}


def read_parked(store: str | None) -> list[ParkedRun]:
    """The parked runs, the one that goes on first first, without those that a person cancelled or started.

    Without an API, the store alone is read. Raises StoreUnavailable and ApiUnavailable.
    """
    runs = list_parked(store)
    if api_url() is None or not runs:
        return runs
    states = find_runs(run.flow_run_id for run in runs)
    return [run for run in runs if (now := states.get(run.flow_run_id)) and now.state == PARKED]


def row_of(run: ParkedRun) -> RunRow:
    fields = run.model_dump(include={"flow_run_id", "name", "until", "circuit"})
    return RunRow(state="parked", since=run.at, why=redact(run.why), **fields)


@app.command(name="list")
def list_runs(*, limit: Limit = 100, how: Answering = ANSWERING) -> int:
    """Show the flow runs that run, with the age of their last heartbeats, and those that are parked.

    Example: prefect-resilience runs list

    Args:
        limit: The largest number of runs in the table. With --json, all are printed.
    """
    with how.at_store() as url:
        rows = [
            RunRow(
                flow_run_id=str(run.id), name=run.name, state="running", since=since, seconds_silent=silent
            )
            for run, since, silent in (list_running() if api_url() is not None else ())
        ]
        rows += map(row_of, read_parked(url))
    if not rows:
        return how.answer([], "No flow run runs or is parked.")
    shown = f" (the first {limit} are shown)" if len(rows) > limit else ""
    return how.answer(rows, look.table(COLUMNS, rows[:limit]), plural(len(rows), "flow run") + shown)


@app.command(name="parked")
def list_parked_runs(*, how: Answering = ANSWERING) -> int:
    """Show the parked flow runs: when each goes on, for which circuit it waits, and why.

    Example: prefect-resilience runs parked
    """
    with how.at_store() as url:
        rows = [row_of(run) for run in read_parked(url)]
    return how.answer(rows, look.table(COLUMNS, rows) if rows else "No flow run is parked.")


@app.command(name="wake")
def wake_runs(run: str, *more: str, how: Answering = ANSWERING) -> int:
    """Let parked flow runs go on now, but never before the time for which a service asked.

    Example: prefect-resilience runs wake tidy-newt

    Args:
        run: The name or the id of a flow run, as `runs parked` prints it.
        more: Further flow runs.
    """
    with how.at_store() as url:
        rows, lines = list[dict[str, Any]](), list[str]()
        for parked in _select((run, *more), read_parked(url)):
            answer = wake(parked, min(time.time(), parked.until), f"Woken by {user_of_host()}", url)
            reason, now = (answer, parked) if isinstance(answer, str) else (None, answer)
            rows.append({**row_of(now).model_dump(), "rejected": reason})
            goes_on = f"goes on at {utc_text(now.until)}"
            lines.append(f"{printable(now.name)} {f'was not woken: {reason}' if reason else goes_on}.")
    how.answer(rows, *lines)
    return 1 if any(row["rejected"] for row in rows) else 0


def _select(names: tuple[str, ...], known: list[ParkedRun]) -> list[ParkedRun]:
    chosen: list[ParkedRun] = []
    for name in names:
        same = [run for run in known if name in (run.flow_run_id, run.name)]
        if not same:
            run = find_run(name) if api_url() is not None else None
            if run is not None:
                raise ConfigurationError(
                    f"the flow run {name} was not woken: it is {run.state}, not {PARKED}"
                )
            near = nearest(name, {run.name for run in known}) if known else ""
            raise ConfigurationError(f"no parked flow run {name!r}{near}")
        chosen += same
    return chosen
