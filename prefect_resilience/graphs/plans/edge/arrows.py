"""What a task run came after, for the UI to show: there is nothing to wait for any more."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from uuid import UUID

from prefect.client.schemas.objects import StateDetails
from prefect.futures import PrefectFuture, PrefectTaskRunFuture
from prefect.states import Completed


class EndedRun(PrefectTaskRunFuture[Any]):
    """A task run that has ended, whatever became of it, in the `wait_for` of one that comes after it.

    It holds neither the value nor the error, so it costs next to nothing and can be sent anywhere.
    """

    def __init__(self, task_run_id: UUID, flow_run_id: UUID | None) -> None:
        super().__init__(task_run_id)
        details = StateDetails(task_run_id=task_run_id, flow_run_id=flow_run_id)
        self._final_state = Completed(data=True, state_details=details)

    def wait(self, timeout: float | None = None) -> None:
        return

    def result(self, timeout: float | None = None, raise_on_failure: bool = True) -> Any:
        return True

    def add_done_callback(self, fn: Callable[[PrefectFuture[Any]], None]) -> None:
        fn(self)
