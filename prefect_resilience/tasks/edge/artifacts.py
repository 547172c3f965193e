"""Artifacts: those of a run, and "circuits", a table of the fleet's circuits.

The process that changed a circuit inside a run writes the table in a thread: at most every EVERY seconds, and
at the end of the process if a change is left. Parked runs that wait for a closed circuit follow then. Errors
are ignored. The flow `show_circuits` writes the table too, on a schedule or by hand.
"""

from __future__ import annotations

import logging
import re
import threading
from collections.abc import Iterable
from contextvars import copy_context
from datetime import UTC, datetime
from time import monotonic
from typing import TYPE_CHECKING
from uuid import UUID

from prefect.artifacts import create_markdown_artifact
from prefect.client.orchestration import get_client
from prefect.client.schemas.actions import ArtifactCreate
from prefect.settings import PREFECT_API_URL

from prefect_resilience.base.process import at_exit, per_process, start_thread
from prefect_resilience.base.text import plural, utc_text
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.errors.taxonomy import bounded
from prefect_resilience.guards.circuits.breaker import get_circuits
from prefect_resilience.guards.circuits.model import CircuitSnapshot
from prefect_resilience.tasks.summaries.markdown import code
from prefect_resilience.telemetry.payloads import fit_text

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun


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


def write_artifact(
    client: SyncPrefectClient, run: FlowRun, flow_name: str, kind: str, text: str, description: str
) -> None:
    """Write a markdown artifact of a run. A later one of the same kind becomes its next version."""
    create_artifact(
        client,
        ArtifactCreate(
            key=artifact_key(kind, flow_name, run.name, run.id),
            type="markdown",
            description=redact(bounded(re.sub(r"[*`\\]", "", description), 500)),
            data=text,
            flow_run_id=run.id,
        ),
    )


def artifact_key(kind: str, flow_name: str, run_name: str, run_id: UUID) -> str:
    """A key that a person reads: the kind, the flow, its run, and the end of the run's id.

    Example:
        >>> artifact_key("run-summary", "ETL night", "tidy-newt", UUID(int=0x3F2A))
        'run-summary-etl-night-tidy-newt-3f2a'
    """
    names = [re.sub(r"[^a-z0-9]+", "-", redact(name).lower()).strip("-") for name in (flow_name, run_name)]
    shown = [name[:NAME_LENGTH].strip("-") for name in names if name]
    return "-".join([kind, *shown, str(run_id)[-4:]])


# -- the table of circuits

logger: logging.Logger = logging.getLogger("prefect_resilience.circuits")

KEY = "circuits"
DESCRIPTION = "The circuits of the fleet"
NAME_LENGTH = 60
EVERY = 10.0
SOON = 0.5
"""Seconds in which several changes are collected into one table."""

AT_THE_END = 5.0
"""The most seconds for which the end of the process waits for a table that is being written."""

MOST_ROWS = 500
LONGEST_NAME = 120
LONGEST_REASON = 300
ORDER = ("forced_open", "open", "half_open", "disabled", "closed")

ABOUT = (
    "Written when a circuit changes, and every 5 minutes by `show-circuits`. If the time above is more than "
    "10 minutes ago, no worker runs `show-circuits`. The current state: `prefect-resilience circuits list`."
)


def markdown_of(circuits: Iterable[CircuitSnapshot], now: datetime) -> str:
    """The table, with the circuits in trouble first."""
    ordered = sorted(circuits, key=lambda circuit: (ORDER.index(circuit.state), circuit.name))
    refusing = sum(circuit.state in ("open", "forced_open") for circuit in ordered)
    lines = [
        "# Circuits",
        "",
        f"{plural(len(ordered), 'circuit')}, {refusing or 'none'} open, as of {utc_text(now)}.",
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
    state = circuit.state.replace("_", " ")
    cells = (
        code(fit_text(circuit.name, LONGEST_NAME)),
        state if state == "closed" else f"**{state}**",  # no signs: some fonts lack them
        f"{circuit.window_failures} of {circuit.window_calls}",
        utc_text(circuit.opened_at if circuit.state != "closed" else None),
        utc_text(circuit.retry_at),
        code(fit_text("; ".join(details), LONGEST_REASON)) if details else "",
    )
    return f"| {' | '.join(cells)} |"


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
        self._next_at = 0.0
        self._leaving = threading.Event()

    def mark_changed(self) -> None:
        """Schedule the table after a circuit changed inside a run. Never raises, never waits."""
        try:
            with self._lock:
                if self._waiting or self._leaving.is_set():
                    return
                wait = max(SOON, self._next_at - monotonic())
                # The run's own context determines which API is used.
                self._thread = start_thread("circuits-table", self._write, wait, context=copy_context())
                self._waiting = True
        except RuntimeError:  # no thread can be started any more
            return

    def leave(self) -> None:
        """At the end of the process: write a scheduled table now, and wait up to AT_THE_END seconds."""
        self._leaving.set()
        if self._thread is not None:
            self._thread.join(AT_THE_END)

    def _write(self, wait: float) -> None:
        from prefect_resilience.durable.batches.edge.parking import follow  # few processes need it

        self._leaving.wait(wait)
        with self._lock:
            # This table may miss any change from here on.
            self._waiting = False
            self._next_at = monotonic() + EVERY
        for work in (_create, follow) if PREFECT_API_URL.value() or not self._leaving.is_set() else ():
            try:
                work()
            except Exception as error:  # noqa: BLE001 - any error of the API or the store
                logger.debug("after a change of a circuit, %s failed: %r", work.__name__, error)


def _create() -> None:
    text = markdown_of(get_circuits(), datetime.now(UTC))
    with own_client() as client:
        create_artifact(client, ArtifactCreate(key=KEY, type="markdown", description=DESCRIPTION, data=text))


keeper: CircuitsTableWriter = per_process(CircuitsTableWriter)
at_exit(keeper.leave)
