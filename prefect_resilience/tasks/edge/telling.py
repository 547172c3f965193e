"""The summary of one flow run: looked up, written, and written again when more is known.

The end of a run waits HELD seconds for it at most. What takes longer goes on beside whatever the process
does next, and the end of the process waits a little once more. A run whose process has died holds up nobody,
so more time is taken for it at once.
"""

from __future__ import annotations

import atexit
import logging
import threading
import time
from collections.abc import Callable
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from typing import TYPE_CHECKING, Any, cast
from uuid import UUID

from prefect.client.schemas.actions import ArtifactCreate
from prefect.settings import PREFECT_CLIENT_MAX_RETRIES, PREFECT_UI_URL, temporary_settings

from prefect_resilience.durable.batches.at_once import answers
from prefect_resilience.errors.info import bounded
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.tasks.edge import summary_reading as reading
from prefect_resilience.tasks.edge.clients import create_artifact, own_client
from prefect_resilience.tasks.edge.looking import Look, Subject
from prefect_resilience.tasks.summaries.markdown import headline, markdown
from prefect_resilience.tasks.summaries.story import Story
from prefect_resilience.telemetry import notes
from prefect_resilience.telemetry.model import Advice

if TYPE_CHECKING:
    from prefect.client.orchestration import SyncPrefectClient
    from prefect.client.schemas.objects import FlowRun

HELD = 3.0
"""Seconds for which the end of a run waits for its summary at most."""

FIRST = 2.0
"""Seconds of these for looking things up; the rest is for writing them."""

AFTER_A_DEATH = 12.0
"""Seconds for a run whose process has died: the API hears of what it did some seconds later."""

PATIENCE = 20.0
"""Seconds for which an API that does not know everything yet is asked once more."""

EVERY = 1.0
AT_THE_END = 5.0
"""Seconds for which the end of the process waits for summaries that are being written."""

MOST_LINKS = 20


@dataclass
class Telling:
    """The summary of one run. `badly`: it ended so that something is to be told in any case."""

    subject: Subject
    log: logging.LoggerAdapter[Any]
    badly: bool
    advice: Advice | None = None
    _written: str = field(default="", init=False)

    def tell(self) -> None:
        """Write the summary, or leave it to a thread that does. Never raises."""
        written = threading.Event()
        run, work = copy_context().run, partial(self._work, written.set)
        thread = threading.Thread(target=run, args=(work,), name="run-summary", daemon=True)
        _threads.append(thread)
        try:
            thread.start()
        except RuntimeError:  # no thread can be started any more
            _threads.remove(thread)
            return
        written.wait(HELD if self.subject.here else AFTER_A_DEATH + HELD)

    def _work(self, written: Callable[[], None]) -> None:
        here = self.subject.here
        try:
            # A client that sleeps between tries of its own would sleep for longer than there is time.
            with temporary_settings({PREFECT_CLIENT_MAX_RETRIES: 0}), own_client() as client:
                whole = self._told(client, FIRST if here else AFTER_A_DEATH, wait=not here)
                written()
                if not whole:
                    self._told(client, PATIENCE, wait=True)
        except Exception as failure:  # noqa: BLE001 - the run is over, and how it ended counts
            self.log.warning("No summary of this run could be made: %s", redact(repr(failure)))
        finally:
            written()
            if self.subject.flow_run.parent_task_run_id is None:
                notes.forget(self.subject.noted_passes)
            _threads.remove(threading.current_thread())

    def _told(self, client: SyncPrefectClient, seconds: float, *, wait: bool) -> bool:
        """Look everything up and write it; whether all was known."""
        until = time.monotonic() + seconds
        if wait and not self.subject.whole:
            self._wait(client, until - FIRST)
        look = Look(self.subject, client, max(until, time.monotonic() + FIRST))
        story = look.look()
        if self.badly or story.remarkable:
            self._write(client, story, look.ids)
        return not story.missing

    def _wait(self, client: SyncPrefectClient, until: float) -> None:
        """Wait until the API has come to know of the run's end."""
        run, state = self.subject.flow_run, self.subject.state
        heard = partial(reading.heard_of_the_end, client, run.id, state.id)
        while time.monotonic() < until and not answers({"heard": heard}, until).get("heard"):
            time.sleep(EVERY)

    def _write(self, client: SyncPrefectClient, story: Story, ids: list[UUID]) -> None:
        links = answers({"links": partial(_others, client, ids)}, time.monotonic() + FIRST).get("links", [])
        text = markdown(story, self.advice, links)
        if text != self._written:
            write_artifact(client, self.subject.flow_run, "run-summary", text, headline(story))
            self._written = text


def write_artifact(client: SyncPrefectClient, run: FlowRun, kind: str, text: str, description: str) -> None:
    """Leave a markdown artifact of a run; a later one of the same kind is its next version."""
    plain = description.replace("**", "").replace("`", "").replace("\\", "")
    create_artifact(
        client,
        ArtifactCreate(
            key=f"{kind}-{run.id}",
            type="markdown",
            description=redact(bounded(plain, 500)),
            data=text,
            flow_run_id=run.id,
        ),
    )


def _others(client: SyncPrefectClient, flow_run_ids: list[UUID]) -> list[tuple[str, str | None]]:
    """The run's other artifacts, such as the picture of a plan, with their addresses."""
    body = {"artifacts": {"flow_run_id": {"any_": [str(one) for one in flow_run_ids]}}, "limit": 100}
    response = client.request("POST", "/artifacts/filter", json=body)
    found = cast("list[dict[str, Any]]", response.raise_for_status().json())
    base = PREFECT_UI_URL.value()
    named = {
        one["key"]: f"{base}/artifacts/artifact/{one['id']}" if base else None
        for one in found
        if one["key"] and one["type"] != "progress" and not one["key"].startswith("run-summary-")
    }
    return sorted(named.items())[:MOST_LINKS]


_threads: list[threading.Thread] = []
"""Those that write a summary at this moment."""


@atexit.register
def _leave() -> None:
    """The process ends: wait for what is being written, a little."""
    until = time.monotonic() + AT_THE_END
    for thread in [*_threads]:
        thread.join(max(until - time.monotonic(), 0.0))
