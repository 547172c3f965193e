"""What ends a flow run from outside: its deadline."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from inspect import iscoroutinefunction
from time import monotonic
from typing import TYPE_CHECKING, Any
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.utilities.timeout import timeout, timeout_async

from prefect_resilience.base.deadlines import GRACE, CallDeadline, current_deadline, sooner
from prefect_resilience.base.outcomes import generates
from prefect_resilience.base.process import setting
from prefect_resilience.durable.batches.edge.tags import remember
from prefect_resilience.errors.exceptions import DeadlineExceeded
from prefect_resilience.guards.timeouts.timeout import release_alarm
from prefect_resilience.telemetry.edge.events import emit

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun

    from prefect_resilience.tasks.edge.flow_options import FlowGuard

_deadlines: OrderedDict[UUID, CallDeadline] = OrderedDict()
"""The deadlines of the flow runs of this process, for their automatic retries."""


def deadline_of_run(guard: FlowGuard, run: FlowRun) -> CallDeadline | None:
    """The deadline of a flow run that begins: its own, or an earlier one around it."""
    around = current_deadline.get()
    if guard.deadline is None:
        return around
    if run.empirical_policy.retry_type != "in_process":
        _deadlines.pop(run.id, None)
    own = CallDeadline(monotonic() + guard.deadline, guard.deadline, f"flow {guard.fn.__name__}")
    return sooner(around, remember(_deadlines, run.id, lambda: own))


class _Interrupted(TimeoutError):
    """Prefect's timer has interrupted the flow."""


@contextmanager
def in_time(fn: Callable[..., Any], limit: CallDeadline, run: FlowRun) -> Generator[None]:
    """Interrupt the flow function at the deadline, as Prefect's `timeout_seconds` does.

    Prefect's server retries every failure of a flow: that is ended, too.
    """
    # A timer around a generator would go on while its reader works.
    seconds = None if generates(fn) else max(limit.remaining(), 0.0) + GRACE
    timer = timeout_async if iscoroutinefunction(fn) else timeout
    release_alarm()
    try:
        with setting(current_deadline, limit), timer(seconds, _Interrupted):
            limit.check()
            yield
    except Exception as error:
        if limit.remaining() <= 0 and run.empirical_policy.retries:
            _end_retries(run)
        if not isinstance(error, _Interrupted):
            raise
        exceeded = DeadlineExceeded(limit.seconds, limit.set_at, f"flow {fn.__name__!r}")
        exceeded.is_reported = True
        payload = {"flow_run_id": str(run.id), "seconds": limit.seconds, "set_at": limit.set_at}
        emit("deadline.exceeded", "flow", fn.__name__, payload)
        raise exceeded from None


def _end_retries(run: FlowRun) -> None:
    """Let Prefect's server not retry this run any more. May block; never raises."""
    policy = run.empirical_policy.model_copy(update={"retries": run.run_count - 1})
    with suppress(Exception), get_client(sync_client=True) as client:
        client.update_flow_run(run.id, empirical_policy=policy)
