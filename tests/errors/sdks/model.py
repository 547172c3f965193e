"""Cases: an SDK, a situation, what it raises then, and what an expert would say about it."""

import importlib
import importlib.metadata
from collections.abc import Callable
from dataclasses import dataclass

from prefect_resilience import ErrorCategory as C
from prefect_resilience import ErrorInfo, classify
from tests.errors.sdks.service import Service

Act = Callable[[Service], object]
"""Raises what the SDK raises, or returns the exception as the SDK makes it."""

NOW = 1_800_000_000.0


@dataclass(frozen=True)
class Expected:
    """The expert's verdict; `retried` is the category's own unless the server forbids or asks for it."""

    category: C
    wait: float | None = None
    retried: bool | None = None

    @property
    def again(self) -> bool:
        return self.category.retryable if self.retried is None else self.retried

    def __str__(self) -> str:
        return f"{self.category}, {'retry' if self.again else 'no retry'}{_seconds(self.wait)}"


@dataclass(frozen=True)
class Case:
    package: str
    """The distribution, as pip knows it."""

    situation: str
    act: Act
    expected: Expected
    remark: str = ""
    """Why the expert expects no more than this, where the SDK loses what the service said."""

    @property
    def version(self) -> str | None:
        return installed(self.package)


Acts = dict[str, tuple[Act, C | Expected]]
"""By situation: what raises, and the verdict."""

Situations = dict[str, Acts]


def of(*tables: Situations) -> list[Case]:
    """The cases of tables by package."""
    return [
        Case(package, situation, act, verdict if isinstance(verdict, Expected) else Expected(verdict))
        for table in tables
        for package, acts in table.items()
        for situation, (act, verdict) in acts.items()
    ]


@dataclass(frozen=True)
class Outcome:
    error: BaseException
    info: ErrorInfo

    def verdict(self) -> str:
        again = "retry" if self.info.retryable else "no retry"
        return f"{self.info.category}, {again}{_seconds(self.info.retry_after)}"

    def agrees(self, expected: Expected) -> bool:
        return self.verdict() == str(expected)


def _seconds(wait: float | None) -> str:
    return "" if wait is None else f" after {wait:g} s"


def installed(package: str) -> str | None:
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError:
        return None


def run(case: Case, service: Service) -> Outcome:
    """What the SDK raises in this situation, classified. Raises AssertionError if it raises nothing."""
    try:
        made = case.act(service)
    except BaseException as error:
        if isinstance(error, KeyboardInterrupt | AssertionError):
            raise
        made = error
    if not isinstance(made, BaseException):
        raise AssertionError(f"{case.package} raised nothing: {case.situation}, {made!r}")
    return Outcome(made, classify(made, now=NOW))


def constructed(dotted: str, *args: object, **fields: object) -> Act:
    """An exception of a class by its dotted name, as the SDK itself constructs it."""

    def act(_: Service) -> object:
        module, _dot, name = dotted.rpartition(".")
        return getattr(importlib.import_module(module), name)(*args, **fields)

    return act


def errors_of(module: str) -> Callable[..., Act]:
    """Constructs exceptions of a module by the names of their classes."""
    return lambda name, *args, **fields: constructed(f"{module}.{name}", *args, **fields)
