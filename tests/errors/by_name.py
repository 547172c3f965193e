"""Exceptions of libraries that are not installed, by their dotted names; and a process without secrets."""

from collections.abc import Callable

import pytest

from prefect_resilience import ErrorInfo, classify
from prefect_resilience.errors.secrets.redact import registered


def caught(call: Callable[[], object]) -> ErrorInfo:
    """The classification of what the call raises."""
    with pytest.raises(BaseException) as info:  # noqa: PT011 - which one is the subject of the test
        call()
    return classify(info.value)


def made(
    dotted: str, *args: object, base: type[BaseException] = Exception, **fields: object
) -> BaseException:
    """An instance of a new class with this name; `fields` are its attributes."""
    module, _, name = dotted.rpartition(".")
    error = type(name, (base,), {"__module__": module})(*args)
    for field, value in fields.items():
        setattr(error, field, value)
    return error


def forget_secrets() -> None:
    """Forget all registered values and patterns."""
    with registered.lock:
        registered.values, registered.patterns = {}, ()
        registered.generation += 1
