"""What is around a call, without importing Prefect: the run, and the settings.

Settings are `PREFECT_RESILIENCE_...` in the environment, or in a file of Prefect's settings.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from prefect_resilience.base.edge.prefect_files import Unclear, value_of
from prefect_resilience.errors.exceptions import ConfigurationError

if TYPE_CHECKING:
    from prefect.context import FlowRunContext, TaskRunContext

_OFF = frozenset({"0", "false", "no", "off", "f", "n"})


def run_contexts() -> tuple[FlowRunContext | None, TaskRunContext | None]:
    """Prefect's contexts of the flow run and the task run around this code."""
    try:
        contexts = sys.modules["prefect.context"]
        return contexts.FlowRunContext.get(), contexts.TaskRunContext.get()
    except (KeyError, AttributeError):  # not imported, or in the middle of it
        return None, None


@dataclass(frozen=True)
class ResilienceSettings:
    """The settings of the package.

    store_url: the store of circuits, effects, error budgets and dead letters; by default a SQLite file in
        Prefect's home.
    circuit_store_url: the store of the circuits, if it is another one.
    timeouts: seconds by the name of an operation, for `timeout="llm-call"`; merged over the defaults.
    grace_seconds: how long running effects may take to end after SIGTERM.
    enabled: `RESILIENCE_ENABLED=false` turns every wrapper into a plain Prefect task, for debugging.
    """

    store_url: str
    circuit_store_url: str | None
    timeouts: Mapping[str, float]
    grace_seconds: float
    enabled: bool

    @property
    def operations(self) -> dict[str, float]:
        from prefect_resilience.base.durations import DEFAULT_OPERATIONS

        return {**DEFAULT_OPERATIONS, **self.timeouts}


def current_settings() -> ResilienceSettings:
    """The settings from the current environment. They are needed before every effect, so they are cached and
    read again only when a variable or Prefect's home has changed. Raises ConfigurationError."""
    return _read(tuple(map(os.environ.get, _VARIABLES)), prefect_home())


_VARIABLES = (
    "RESILIENCE_ENABLED",
    *map(
        "PREFECT_RESILIENCE_{}".format,
        ("ENABLED", "STORE_URL", "CIRCUIT_STORE_URL", "TIMEOUTS", "GRACE_SECONDS"),
    ),
)
GRACE_SECONDS = 20.0
"""Less than the 30 s that Prefect's workers allow, since handing a run over takes some, too."""


@lru_cache(maxsize=16)
def _read(variables: tuple[str | None, ...], home: Path) -> ResilienceSettings:
    return ResilienceSettings(
        store_url=_own("STORE_URL") or f"sqlite:///{home}/resilience.db",
        circuit_store_url=_own("CIRCUIT_STORE_URL"),
        timeouts=MappingProxyType(_timeouts(_own("TIMEOUTS") or {})),
        grace_seconds=read_grace("PREFECT_RESILIENCE_GRACE_SECONDS", _own("GRACE_SECONDS"), GRACE_SECONDS),
        enabled=is_enabled(),
    )


def _own(name: str) -> Any:
    """A setting of this package; None if nothing sets it."""
    try:
        return value_of(name, "resilience")
    except Unclear:
        return None


def read_grace(name: str, written: Any, default: float) -> float:
    """The seconds of the setting or option. Raises ConfigurationError."""
    try:
        seconds = default if written is None else float(written)
    except (ValueError, TypeError):
        seconds = -1.0
    if not 0 <= seconds < float("inf"):
        raise ConfigurationError(f"{name}={written!r:.60}: write a number of seconds")
    return seconds


def _timeouts(written: Any) -> dict[str, float]:
    try:
        values = json.loads(written) if isinstance(written, str) else written
        return {str(name): float(seconds) for name, seconds in values.items()}
    except (ValueError, TypeError, AttributeError):
        raise ConfigurationError(
            f'PREFECT_RESILIENCE_TIMEOUTS={written!r:.60}: write JSON with seconds, as in {{"llm-call": 60}}'
        ) from None


def prefect_home() -> Path:
    """Prefect's home. Prefect is imported only if its files are not clear. Raises ConfigurationError."""
    unclear: object = ""
    if "prefect" not in sys.modules:
        try:
            value = value_of("HOME")
            if value is None or isinstance(value, str):
                return Path("~/.prefect" if value is None else value).expanduser()
            unclear = f"home = {value!r}: write a path"
        except Unclear as error:
            unclear = error
    try:
        from prefect.settings import PREFECT_HOME

        return PREFECT_HOME.value()
    except Exception as error:
        raise ConfigurationError(f"Prefect's settings cannot be read: {unclear}: {error}") from error


def api_url() -> str | None:
    """The address of Prefect's API; None if none is configured. Prefect is imported as for its home."""
    if "prefect" not in sys.modules:
        with suppress(Unclear):
            return value_of("URL", "api") or None
    from prefect.settings import PREFECT_API_URL

    return PREFECT_API_URL.value()


def store_url() -> str:
    """The default store of everything."""
    return current_settings().store_url


def circuit_store_url() -> str:
    """The default store of circuits."""
    settings = current_settings()
    return settings.circuit_store_url or settings.store_url


def is_enabled() -> bool:
    """Whether resilience is switched on. Runs on every call, so it reads the two variables, and the files
    once per process."""
    text = os.environ.get("RESILIENCE_ENABLED") or os.environ.get("PREFECT_RESILIENCE_ENABLED")
    return _is_on_in_files() if text is None else text.strip().lower() not in _OFF


@cache
def _is_on_in_files() -> bool:
    value = _own("ENABLED")
    return value is None or str(value).strip().lower() not in _OFF
