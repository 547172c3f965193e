"""Two small drivers for sequences that are written once.

A sequence is a generator that yields what it needs done and is sent the outcome (the idea of httpx's
auth flows). The same generator then runs in a plain function and in a coroutine.
"""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from typing import Any, TypeVar

T = TypeVar("T")


@dataclass(eq=False, slots=True)  # not frozen: two are made for each call, and that would be felt
class Blocking:
    """Something that may block, such as a store: run in place by `drive`, in a thread by `adrive`."""

    fn: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict[str, Any])


@dataclass(eq=False, slots=True)
class Invoke:
    """A function of the user's: called in place, and awaited by `adrive` when it returns an awaitable."""

    fn: Callable[..., Any]
    args: tuple[Any, ...] = ()
    kwargs: dict[str, Any] = field(default_factory=dict[str, Any])


Command = Blocking | Invoke
Sequence = Generator[Command, Any, T]


def drive(sequence: Sequence[T]) -> T:
    """Run a sequence to its end in this thread, and return what it returned."""
    try:
        command = next(sequence)
        while True:
            try:
                outcome = command.fn(*command.args, **command.kwargs)
            except BaseException as error:  # noqa: BLE001 - whatever it is, it is the sequence's
                command = sequence.throw(error)
            else:
                command = sequence.send(outcome)
    except StopIteration as stop:
        return stop.value


async def adrive(sequence: Sequence[T]) -> T:
    """Run a sequence to its end on the event loop, which it never blocks, and return what it returned."""
    try:
        command = next(sequence)
        while True:
            try:
                if isinstance(command, Blocking):
                    outcome = await asyncio.to_thread(command.fn, *command.args, **command.kwargs)
                else:
                    outcome = command.fn(*command.args, **command.kwargs)
                    if inspect.isawaitable(outcome):
                        outcome = await outcome
            except BaseException as error:  # noqa: BLE001 - whatever it is, it is the sequence's
                command = sequence.throw(error)
            else:
                command = sequence.send(outcome)
    except StopIteration as stop:
        return stop.value
