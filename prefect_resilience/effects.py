"""Side effects, batches and sagas: the names of `prefect_resilience.durable`."""

from typing import Any

from prefect_resilience import durable


def __getattr__(name: str) -> Any:
    return getattr(durable, name)


__path__: tuple[str, ...] = ()  # old pickles name modules that were below this one
