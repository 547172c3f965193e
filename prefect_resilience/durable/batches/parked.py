"""Parked flow runs: what the store keeps of each of them, and the changes of it. Pure.

A parked run holds no process: it waits in the API as Scheduled, named Parked, until a worker runs it again.

The intent is stored before the state is set, so a process that is killed in between does not lose the wait.
Times are seconds since the epoch.
"""

from __future__ import annotations

from pydantic import BaseModel

from prefect_resilience.base.text import utc_text

PREFIX = "parked/"
PARKED = "Parked"
"""The name of the state of a parked flow run, and of a task run that waits in it."""
LEAD = 30.0
"""The fewest seconds for which a run is parked: a worker takes a run up to 10 s early, and by then the old
process must have ended."""


class ParkedRun(BaseModel, frozen=True):
    """One flow run that parks, or has parked.

    `until` is when it goes on, and `not_before` when a service said it will be back. `at` is when it parked,
    `since` when it did first, and `parks` how often it did. `deadline` is the end of its deadline, by the
    store's clock.
    """

    flow_run_id: str
    name: str
    flow: str
    why: str
    until: float
    at: float
    since: float
    parks: int = 1
    is_open: bool = True
    """Whether it is, or should be, parked."""
    circuit: str | None = None
    not_before: float | None = None
    deadline: float | None = None


def key_of(flow_run_id: str) -> str:
    """The key of a run's document."""
    return f"{PREFIX}{flow_run_id}"


def message_of(run: ParkedRun) -> str:
    """The message of its state in the UI."""
    return f"Parked until {utc_text(run.until)}: {run.why}"
