"""A flow around one call, and the person who answers: waits until the run is paused, and sends the form."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from functools import partial
from typing import Any
from uuid import UUID

from prefect import flow, get_client
from prefect.client.schemas.objects import FlowRun
from prefect.runtime import flow_run


def in_flow(mode: Any, body: Callable[[], Any], **options: Any) -> Any:
    """What a flow gives that calls `body`, which returns an awaitable where the mode is async."""
    if not mode.isasync:
        return flow(lambda: body(), name="sync")(**options)

    async def scenario() -> Any:
        return await body()

    return asyncio.run(flow(scenario)(**options))


class Answering:
    """Sends the answers in order, one for each pause of the flow run that `begin` names."""

    def __init__(self, until: Callable[..., Any], *answers: dict[str, Any]) -> None:
        self.questions: list[str] = []
        self.paused: list[FlowRun] = []
        self._until, self._answers = until, answers
        self._run_id: UUID | None = None
        self._thread = threading.Thread(target=self._work, daemon=True)

    def begin(self, run_id: UUID | None = None) -> None:
        """Called inside of the flow run, or with its id."""
        if self._run_id is None:
            self._run_id = run_id or UUID(str(flow_run.get_id()))
            self._thread.start()

    def end(self) -> None:
        self._thread.join(20)
        assert len(self.questions) == len(self._answers)

    def _work(self) -> None:
        with get_client(sync_client=True) as client:

            def paused(after: int) -> FlowRun | None:
                run = client.read_flow_run(self._run_id)
                known = [one.state.id for one in self.paused]
                return run if run.state.is_paused() and run.state.id not in known[:after] else None

            for number, answer in enumerate(self._answers):
                run = self._until(lambda number=number: paused(number))
                self.paused.append(run)
                key = run.state.state_details.run_input_keyset["description"]
                form = self._until(partial(client.filter_flow_run_input, run.id, key, 1, set()))
                result = client.resume_flow_run(run.id, run_input=answer)
                assert result.status.value == "ACCEPT", result
                self.questions.append(form[0].decoded_value)
