"""The first attempt of a call, made without generators, which would cost more than all the rest of it.

It is written once for sync and once for async callers, and shared by `@resilient`, tasks and transports.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from sys import modules
from typing import Any

from prefect_resilience.base.deadlines import current_deadline
from prefect_resilience.base.drive import Steps, adrive, drive
from prefect_resilience.base.outcomes import PLAIN, last, require_result
from prefect_resilience.calls.attempt import Held, end_attempt, leave, make_attempt
from prefect_resilience.calls.judging import report_recovery
from prefect_resilience.calls.model import Guard, RunContext
from prefect_resilience.calls.spans import SDK, find_tracer
from prefect_resilience.guards import faults
from prefect_resilience.guards.timeouts.timeout import with_deadline

Attempts = Callable[[Any, Steps[Any] | None], Steps[Any]]
"""All attempts of a call, with its context. The second argument is the end of a first one that failed."""


class FirstAttempt:
    """The first attempt of each call of one guard; in a task run each attempt, since the engine repeats it.

    It needs no generators and no I/O if a call that succeeds meets no guard but the circuit and the timeout:
    retries and fallbacks act later. `fn` makes it in place of the guard's function.
    """

    def __init__(self, guard: Guard, fn: Callable[..., Any] | None = None) -> None:
        self.guard: Guard = guard
        self.fn: Callable[..., Any] = fn or with_deadline(guard.timeout, guard.fn, guard.isasync, guard.fn)
        self._is_template = guard.circuit is not None and bool(guard.circuit.fields)
        bounds = fn is None and (guard.timeout is None or guard.timeout.mode != "process")
        extras = (guard.hedge, guard.effect, guard.error_budget, guard.expect, guard.decompose)
        self.is_plain: bool = (
            all(part is guard.circuit for part in guard.entered_in_order)
            and all(part is None for part in (*extras, guard.policy, guard.retry.budget, guard.deadline))
            and not guard.remembers
            and (bounds or guard.timeout is None)
        )

    def call(
        self,
        run: RunContext,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        attempts: Attempts | None = None,
    ) -> Any:
        """The value of the call. `attempts` makes the rest of it; default: one by `make_attempt`."""
        held = self._enter(run)
        if held is None:
            return drive(attempts(run, None) if attempts else make_attempt(self.guard, run, args, kwargs))
        began = time.monotonic()
        try:
            value = self.fn(*args, **kwargs)
            if type(value) not in PLAIN:
                require_result(value, self.guard.fn)
        except Exception as error:  # noqa: BLE001 - it is raised again, or there is another attempt
            failure = error
        except BaseException as error:
            drive(leave(self.guard, held, error))
            raise
        else:
            for circuit, ticket in held:
                if circuit.leave_at_once(ticket):
                    circuit.flush()
            if (record := run.record_so_far()) is not None and record.history:
                report_recovery(run, record)
            run.went_well()
            return value
        steps = end_attempt(self.guard, run, began, failure, held=held)
        del failure  # see `end_attempt`
        return drive(attempts(run, steps) if attempts else steps)

    async def acall(
        self,
        run: RunContext,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        attempts: Attempts | None = None,
    ) -> Any:
        """As `call`, for a coroutine function."""
        held = self._enter(run)
        if held is None:
            steps = attempts(run, None) if attempts else make_attempt(self.guard, run, args, kwargs)
            return await adrive(steps)
        began = time.monotonic()
        try:
            value = await self.fn(*args, **kwargs)
            if type(value) not in PLAIN:
                value = require_result(await last(value), self.guard.fn)
        except Exception as error:  # noqa: BLE001 - it is raised again, or there is another attempt
            failure = error
        except BaseException as error:
            await adrive(leave(self.guard, held, error))
            raise
        else:
            for circuit, ticket in held:
                if circuit.leave_at_once(ticket):
                    import asyncio

                    await asyncio.to_thread(circuit.flush)
            if (record := run.record_so_far()) is not None and record.history:
                report_recovery(run, record)
            run.went_well()
            return value
        steps = end_attempt(self.guard, run, began, failure, held=held)
        del failure
        return await adrive(attempts(run, steps) if attempts else steps)

    def _enter(self, run: RunContext) -> Held | None:
        """Acquire the circuit. None if generators are needed: the store must be asked, the circuit rejects
        the call, there is a deadline, faults are injected, or spans are recorded."""
        if current_deadline.get() is not None or run.outer_deadline is not None:
            return None
        if not self.is_plain or faults.active or (SDK in modules and find_tracer() is not None):
            return None
        circuit = self.guard.circuit
        if circuit is None:
            return []
        try:
            bound = circuit.bind(run.parameters) if self._is_template else circuit
            ticket = bound.enter_at_once()
        except Exception:  # noqa: BLE001 - `make_attempt` raises it again, where it is handled
            return None
        return None if ticket is None else [(bound, ticket)]
