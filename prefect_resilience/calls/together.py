"""Several calls at a time, in threads or on the event loop. None is begun after one has failed."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Awaitable, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextvars import copy_context
from dataclasses import dataclass
from typing import Any


class _NotRun:
    def __repr__(self) -> str:
        return "not run"


NOT_RUN: Any = _NotRun()
"""Stands for the outcome of a call that was not begun."""


@dataclass(frozen=True, slots=True)
class Raised:
    """The outcome of a call that failed."""

    error: Exception


def together(calls: Sequence[Callable[[], Any]], parallel: int | None) -> list[Any]:
    """What each call returned, `Raised` of what it raised, or NOT_RUN, in their order.

    With `parallel=1` all of them run in this thread. What is no Exception, such as the end of the program,
    is raised.
    """
    stop = threading.Event()

    def made(call: Callable[[], Any]) -> Any:
        if stop.is_set():
            return NOT_RUN
        try:
            return call()
        except Exception as error:  # noqa: BLE001 - it is the outcome
            stop.set()
            return Raised(error)
        except BaseException:
            stop.set()
            raise

    if parallel == 1 or len(calls) == 1:
        return [made(call) for call in calls]
    with ThreadPoolExecutor(min(parallel or len(calls), len(calls)), "part") as pool:
        running = [pool.submit(copy_context().run, made, call) for call in calls]
        try:
            return [future.result() for future in running]
        except BaseException:
            stop.set()
            raise


async def atogether(calls: Sequence[Callable[[], Awaitable[Any]]], parallel: int) -> list[Any]:
    """As `together`, on the event loop; cancelled, it cancels those that run."""
    room = asyncio.Semaphore(parallel)
    failed = False

    async def made(call: Callable[[], Awaitable[Any]]) -> Any:
        nonlocal failed
        async with room:
            if failed:
                return NOT_RUN
            try:
                return await call()
            except Exception as error:  # noqa: BLE001 - it is the outcome
                failed = True
                return Raised(error)

    tasks = [asyncio.ensure_future(made(call)) for call in calls]
    try:
        return list(await asyncio.gather(*tasks))
    except BaseException:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        raise


def in_main_thread() -> bool:
    return threading.current_thread() is threading.main_thread()
