"""The artifact "circuits": a table of the fleet's circuits, rewritten when one of them changes.

The process that changed a circuit inside a run writes it in a thread: at most every EVERY seconds, and at the
end of the process if a change is left. Errors are ignored. At the end of a run, a process with circuits also
writes it if the table differs from the store or is older than FRESH. The flow `show_circuits` writes it too,
on a schedule or by hand.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from contextvars import copy_context
from datetime import UTC, datetime
from time import monotonic
from typing import TYPE_CHECKING, Any

from prefect.artifacts import create_markdown_artifact
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactCreate
from prefect.settings import PREFECT_API_URL
from prefect.types._datetime import parse_datetime

from prefect_resilience.base.process import at_exit, per_process, start_thread
from prefect_resilience.guards.circuits.breaker import get_circuits
from prefect_resilience.guards.circuits.model import CircuitSnapshot
from prefect_resilience.tasks.summaries.markdown import code
from prefect_resilience.telemetry.payloads import fit_text

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.actions import ArtifactCreate


def own_client() -> SyncPrefectClient:
    """A client of its own, to be used in a `with` block.

    Prefect caches a client for a run and closes it at the run's end, even for a thread that continues in the
    run's context. Different settings, even empty ones, make a new client.
    """
    return get_client(sync_client=True, httpx_settings={})


def create_artifact(client: SyncPrefectClient, artifact: ArtifactCreate) -> None:
    """`client.create_artifact` without its event. While the process ends, Prefect cannot send the event and
    logs an error with a traceback."""
    client.request(
        "POST", "/artifacts/", json=artifact.model_dump(mode="json", exclude_unset=True)
    ).raise_for_status()


logger: logging.Logger = logging.getLogger("prefect_resilience.circuits")

KEY = "circuits"
DESCRIPTION = "The circuits of the fleet"
EVERY = 10.0
SOON = 0.5
"""Seconds in which several changes are collected into one table."""

FRESH = 300.0
"""Seconds after which the end of a run rewrites an unchanged table, so that readers see a recent time."""

AT_THE_END = 5.0
"""The most seconds for which the end of the process waits for a table that is being written."""

MOST_ROWS = 500
LONGEST_NAME = 120
LONGEST_REASON = 300
ORDER = ("forced_open", "open", "half_open", "disabled", "closed")
QUIET = frozenset({"closed"})
"""States that are not bold. The table uses no signs, because some fonts lack them."""

ABOUT = (
    "Written when a circuit changes, at the end of runs that use one, and every 5 minutes by "
    "`show-circuits`. If the time above is more than 10 minutes ago, no worker runs `show-circuits`. "
    "The current state: `prefect-resilience circuits list`."
)


def markdown_of(circuits: Iterable[CircuitSnapshot], now: datetime) -> str:
    """The table, with the circuits in trouble first."""
    ordered = sorted(circuits, key=lambda circuit: (ORDER.index(circuit.state), circuit.name))
    refusing = sum(circuit.state in ("open", "forced_open") for circuit in ordered)
    lines = [
        "# Circuits",
        "",
        f"{len(ordered)} circuit{'' if len(ordered) == 1 else 's'}, {refusing or 'none'} open, "
        f"as of {_utc(now)}.",
        "",
    ]
    if ordered:
        lines += ["| circuit | state | failed | opened | next probe | why |", "|---|---|---:|---|---|---|"]
        lines += [_row(circuit) for circuit in ordered[:MOST_ROWS]]
    if len(ordered) > MOST_ROWS:
        lines += ["", f"and {len(ordered) - MOST_ROWS} more, most of them closed or disabled"]
    return "\n".join([*lines, "", ABOUT, ""])


def _row(circuit: CircuitSnapshot) -> str:
    details = [text for text in (circuit.reason, circuit.last_error) if text and circuit.state != "closed"]
    cells = (
        code(fit_text(circuit.name, LONGEST_NAME)),
        _state(circuit.state),
        f"{circuit.window_failures} of {circuit.window_calls}",
        _time(circuit.opened_at if circuit.state != "closed" else None),
        _time(circuit.retry_at),
        code(fit_text("; ".join(details), LONGEST_REASON)) if details else "",
    )
    return f"| {' | '.join(cells)} |"


def _state(state: str) -> str:
    words = state.replace("_", " ")
    return words if state in QUIET else f"**{words}**"


def write_circuits_table() -> list[CircuitSnapshot]:
    """Write the artifact in the current flow run. Returns its circuits.

    Raises StoreUnavailable, and errors of the Prefect API.
    """
    circuits = get_circuits()
    markdown = markdown_of(circuits, datetime.now(UTC))
    create_markdown_artifact(markdown=markdown, key=KEY, description=DESCRIPTION)
    return circuits


class CircuitsTableWriter:
    """Writes the table soon after a change, with a limited rate."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._waiting = False
        self._changed = False
        self._next_at = 0.0
        self._leaving = threading.Event()
        self._registered = False

    def mark_changed(self) -> None:
        """Schedule the table after a circuit changed inside a run. Never raises, never waits."""
        self._changed = True
        self.look()

    def look(self) -> None:
        """Schedule the table if it is out of date. Never raises, never waits."""
        try:
            with self._lock:
                if self._waiting or self._leaving.is_set():
                    return
                self._waiting = True
                if not self._registered:
                    self._registered = True
                    at_exit(self.leave)
                wait = max(SOON, self._next_at - monotonic())
                # The run's own context determines which API is used.
                self._thread = start_thread("circuits-table", self._write, wait, context=copy_context())
        except RuntimeError:  # no thread can be started any more
            self._waiting = False

    def leave(self) -> None:
        """At the end of the process: write a scheduled table now, and wait up to AT_THE_END seconds."""
        self._leaving.set()
        thread = self._thread
        if thread is not None:
            thread.join(AT_THE_END)

    def _write(self, wait: float) -> None:
        self._leaving.wait(wait)
        with self._lock:
            # This table may miss any change from here on.
            self._waiting = False
            changed, self._changed = self._changed, False
            self._next_at = monotonic() + EVERY
        try:
            if PREFECT_API_URL.value() or not self._leaving.is_set():
                _create() if changed else _create_if_old()
        except Exception as error:  # noqa: BLE001 - any error of the API or the store
            logger.debug("the circuits table could not be written: %r", error)


def _create() -> None:
    artifact = ArtifactCreate(
        key=KEY, type="markdown", description=DESCRIPTION, data=markdown_of(get_circuits(), datetime.now(UTC))
    )
    with own_client() as client:
        create_artifact(client, artifact)


def _create_if_old() -> None:
    """Write the table unless the last one has the same rows and is younger than FRESH."""
    now = datetime.now(UTC)
    text = markdown_of(get_circuits(), now)
    with own_client() as client:
        body: dict[str, Any] = {"artifacts": {"key": {"any_": [KEY]}}, "limit": 1}
        artifacts = client.request("POST", "/artifacts/latest/filter", json=body).raise_for_status().json()
        if artifacts:
            age = (now - parse_datetime(artifacts[0]["updated"])).total_seconds()
            if age < FRESH and _rows_of(artifacts[0]["data"]) == _rows_of(text):
                return
        create_artifact(client, ArtifactCreate(key=KEY, type="markdown", description=DESCRIPTION, data=text))


def _rows_of(table: Any) -> list[list[str]]:
    """The names and states of a table. A table with the same ones counts as unchanged."""
    lines = [line for line in str(table).splitlines() if line.startswith("| `")]
    return [line.split(" | ")[:2] for line in lines]


keeper: CircuitsTableWriter = per_process(CircuitsTableWriter)


def _time(seconds: float | None) -> str:
    return "" if seconds is None else _utc(datetime.fromtimestamp(seconds, UTC))


def _utc(moment: datetime) -> str:
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"
