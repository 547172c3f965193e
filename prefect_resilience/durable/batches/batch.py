"""Batches: effects that belong together, so that a repeated run repeats none of them."""

from __future__ import annotations

from collections.abc import Callable, Generator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from contextvars import ContextVar
from uuid import UUID, uuid4

from prefect_resilience.base.process import setting
from prefect_resilience.errors.exceptions import ConfigurationError

LONGEST = 200

named_batch: ContextVar[tuple[str, str] | None] = ContextVar("prefect_resilience_batch", default=None)
"""The batch of the enclosing `with batch(...)`, and the id of that block."""

_carrier: Callable[[str], AbstractContextManager[object]] = nullcontext
"""Entered in every batch. Carries its id to other processes, which the context does not reach."""


@contextmanager
def batch(batch_id: str) -> Generator[str, None, None]:
    """Everything inside belongs to this batch, including threads, tasks and subflows that it starts.

    Without it, effects belong to the batch of their root flow run. You choose the id: at most 200 characters,
    and the same whenever the same work is repeated. In nested batches, the inner one counts.

    Example:
        >>> with batch("invoices-2026-11") as batch_id:
        ...     print(batch_id)
        invoices-2026-11
    """
    check_batch_id(batch_id)
    with setting(named_batch, (batch_id, f"block-{uuid4().hex}")), _carrier(batch_id):
        yield batch_id


def batch_block() -> str | None:
    """The unique id of the `with batch(...)` around this code."""
    named = named_batch.get()
    return None if named is None else named[1]


def carry_batches(carrier: Callable[[str], AbstractContextManager[object]]) -> None:
    """Enter `carrier(batch_id)` in every batch. The Prefect edge uses it to pass the id on to runs."""
    global _carrier
    _carrier = carrier


def check_batch_id(batch_id: object) -> str:
    """The id itself. Raises ConfigurationError for an invalid one."""
    if not isinstance(batch_id, str) or not batch_id.strip() or len(batch_id) > LONGEST:
        raise ConfigurationError(
            f'a batch needs an id of 1 to {LONGEST} characters, such as batch("invoices-2026-11"), '
            f"not {batch_id!r:.60}"
        )
    return batch_id


def run_id_of(batch_id: str) -> UUID | None:
    """The flow run id that a batch id may be; None for a name."""
    try:
        run_id = UUID(batch_id)
    except ValueError:
        return None
    return run_id if str(run_id) == batch_id else None
