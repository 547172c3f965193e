"""Attempts at a block of code: `for attempt in resilient(...): with attempt: ...`."""

from __future__ import annotations

import time
from collections.abc import AsyncGenerator, Generator, Mapping
from types import TracebackType
from typing import Any

from prefect_resilience.base.drive import Steps, adrive, drive
from prefect_resilience.base.edge.current_settings import is_enabled
from prefect_resilience.calls.attempt import Held, enter, handle_failure, leave, record_success
from prefect_resilience.calls.edge.local import LocalRun, delay_after, pause_before_retry
from prefect_resilience.errors.exceptions import ConfigurationError

OF_A_BLOCK = ("retry", "circuit", "limits", "classify", "error_budget")


def check_block(options: Mapping[str, Any]) -> None:
    """Raise ConfigurationError for an option that needs a function to call."""
    for name, value in options.items():
        if name not in OF_A_BLOCK and value not in (None, False):
            raise ConfigurationError(
                f"{name}= needs a function and cannot guard a block: put the code into a function with "
                f"@resilient({name}=...)"
            )


class _Attempt:
    """One attempt at a block; its guards are acquired."""

    def __init__(self, run: LocalRun, number: int) -> None:
        self.number: int = number
        """The number of this attempt, from 1."""
        self.failure: Exception | None = None
        """The error after which there is another attempt."""
        self.entered: bool = False
        self._run = run
        self._held: Held = []
        self._began = time.monotonic()

    def acquire(self) -> Steps[bool]:
        """Acquire the guards. False if one of them rejected the attempt and there is another one."""
        if not is_enabled():
            return True
        try:
            yield from enter(self._run.guard, self._run, self._held)
        except Exception as error:
            if not (yield from self.finish(error)):
                raise
            return False
        return True

    def finish(self, error: BaseException | None) -> Steps[bool]:
        """Release the guards. Returns whether the error is swallowed, because another attempt follows."""
        run = self._run
        yield from leave(run.guard, self._held, error)
        if not is_enabled() or (isinstance(error, BaseException) and not isinstance(error, Exception)):
            return False
        if error is None:
            yield from record_success(run.guard, run, None)
            return False
        outcome = yield from handle_failure(run.guard, run, self._began, error)
        if not isinstance(outcome, Exception) or delay_after(run, outcome) is None:
            return False
        self.failure = outcome
        return True

    def release(self) -> Steps[None]:
        """Release what was acquired for a block that was not entered."""
        yield from leave(self._run.guard, self._held, None)

    def must_be_entered(self, how: str) -> None:
        if not self.entered:
            raise ConfigurationError(
                f"the loop did not enter its attempt: put the code inside `{how} attempt:`"
            )


class Block(_Attempt):
    """One attempt: `with attempt:`."""

    def __enter__(self) -> Block:
        self.entered = True
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        return drive(self.finish(error))


class AsyncBlock(_Attempt):
    """One attempt: `async with attempt:`."""

    async def __aenter__(self) -> AsyncBlock:
        self.entered = True
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> bool:
        return await adrive(self.finish(error))


def attempts(run: LocalRun) -> Generator[Block, None, None]:
    number = 0
    while True:
        number += 1
        block = Block(run, number)
        if drive(block.acquire()):
            try:
                yield block
            finally:
                drive(block.release())
            block.must_be_entered("with")
        if block.failure is None:
            return
        drive(pause_before_retry(run, delay_after(run, block.failure) or 0.0, block.failure))


async def attempts_async(run: LocalRun) -> AsyncGenerator[AsyncBlock, None]:
    number = 0
    while True:
        number += 1
        block = AsyncBlock(run, number)
        if await adrive(block.acquire()):
            try:
                yield block
            finally:
                await adrive(block.release())
            block.must_be_entered("async with")
        if block.failure is None:
            return
        await adrive(pause_before_retry(run, delay_after(run, block.failure) or 0.0, block.failure))
