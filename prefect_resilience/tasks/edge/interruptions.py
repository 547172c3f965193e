"""What ends a flow run from outside: its deadline, and SIGTERM."""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Generator
from contextlib import contextmanager, suppress
from inspect import iscoroutinefunction
from time import monotonic
from typing import TYPE_CHECKING, Any
from uuid import UUID

from prefect.client.orchestration import get_client
from prefect.exceptions import TerminationSignal
from prefect.utilities.timeout import timeout, timeout_async

from prefect_resilience.base.deadlines import GRACE, CallDeadline, current_deadline, sooner
from prefect_resilience.base.outcomes import generates
from prefect_resilience.base.process import setting
from prefect_resilience.durable.batches.edge import parking as parked_runs
from prefect_resilience.durable.batches.edge.tags import remember
from prefect_resilience.durable.effects.grace import in_main_thread, running
from prefect_resilience.errors.exceptions import DeadlineExceeded, StoreUnavailable
from prefect_resilience.guards.timeouts.timeout import release_alarm
from prefect_resilience.tasks.edge.long_waits import LongWait, Parking, RunParks, park_run
from prefect_resilience.telemetry.edge.events import emit

if TYPE_CHECKING:
    from prefect.client.schemas.objects import FlowRun
    from prefect.context import FlowRunContext

    from prefect_resilience.durable.batches.parked import ParkedRun
    from prefect_resilience.tasks.edge.flow_options import FlowGuard

_deadlines: OrderedDict[UUID, CallDeadline] = OrderedDict()
"""The deadlines of the flow runs of this process, for their automatic retries."""


def deadline_of_run(guard: FlowGuard, run: FlowRun, earlier: ParkedRun | None) -> CallDeadline | None:
    """The deadline of a flow run that begins: its own, or an earlier one around it. It went on while the run
    was parked. May block."""
    around = current_deadline.get()
    if guard.deadline is None:
        return around
    if run.empirical_policy.retry_type != "in_process":
        _deadlines.pop(run.id, None)
    seconds = guard.deadline
    if earlier is not None and earlier.is_open and earlier.deadline is not None:
        with suppress(StoreUnavailable):
            seconds = earlier.deadline - parked_runs.store_time()
    own = CallDeadline(monotonic() + seconds, guard.deadline, f"flow {guard.fn.__name__}")
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


@contextmanager
def hand_over(guard: FlowGuard, context: FlowRunContext, parking: Parking | None) -> Generator[None]:
    """When SIGTERM ends the flow function, wait for its effects, and let another process go on with the run.

    That is for a deployed run that may be run again: one that parks, or that is recovered automatically. Any
    other one ends as Prefect ends it.
    """
    run = context.flow_run
    assert run is not None
    if run.parent_task_run_id is not None or not in_main_thread():
        yield
        return
    running.begin_run(guard.grace_seconds)
    try:
        yield
    except (TerminationSignal, asyncio.CancelledError) as error:
        if not _ends_process(error):
            raise
        rest = running.wait()
        if run.deployment_id is None:
            raise
        if parking is not None:
            why = f"SIGTERM ended its process, in which {rest or 'no'} effects were still running"
            parking.waits.append(LongWait(time.time(), why))
            raise RunParks(state=park_run(parking, context)) from None
        if _is_cancelled(run):
            # While an effect holds SIGTERM back, Prefect's worker cannot announce a cancellation.
            raise RunParks from None
        raise
    finally:
        running.seconds = None


def _ends_process(error: BaseException) -> bool:
    """Whether it is a SIGTERM. One that strikes the event loop itself cancels the tasks in it."""
    if isinstance(error, TerminationSignal):
        return True
    with suppress(RuntimeError):  # no loop runs
        task = asyncio.current_task()
        return task is not None and task.cancelling() > 0
    return False


def _is_cancelled(run: FlowRun) -> bool:
    with suppress(Exception), get_client(sync_client=True) as client:
        state = client.read_flow_run(run.id).state
        return state is not None and (state.is_cancelling() or state.is_cancelled())
    return False
