"""Settings: `PREFECT_RESILIENCE_...` in the environment, or in a file of Prefect's settings."""

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from pydantic import Field, field_validator

from prefect_resilience.base.durations import DEFAULT_OPERATIONS
from prefect_resilience.base.edge.prefect_files import Unclear, value_of
from prefect_resilience.base.policy import Policy
from prefect_resilience.errors.exceptions import ConfigurationError

_OFF = frozenset({"0", "false", "no", "off", "f", "n"})


class ResilienceSettings(Policy):
    """The settings from the environment.

    enabled: `RESILIENCE_ENABLED=false` turns every wrapper into a plain Prefect task, for debugging.
    store_url: the store of circuits, effects, error budgets and dead letters; by default a SQLite file in
        Prefect's home.
    circuit_store_url: the store of the circuits, if it is another one.
    timeouts: seconds by the name of an operation, for `timeout="llm-call"`; merged over the defaults.
    """

    enabled: bool = True
    store_url: str = Field(default_factory=lambda: f"sqlite:///{prefect_home()}/resilience.db")
    circuit_store_url: str | None = None
    timeouts: dict[str, float] = Field(default_factory=dict[str, float])

    @field_validator("timeouts", mode="before")
    @classmethod
    def _read_json(cls, value: Any) -> Any:
        return json.loads(value) if isinstance(value, str) else value

    @property
    def operations(self) -> dict[str, float]:
        return {**DEFAULT_OPERATIONS, **self.timeouts}


def current_settings() -> ResilienceSettings:
    """The settings from the current environment. They are needed before every effect, so they are cached and
    read again only when a variable or Prefect's home has changed. Raises ConfigurationError."""
    return _read(tuple(map(os.environ.get, _VARIABLES)), prefect_home())


_VARIABLES = (
    "RESILIENCE_ENABLED",
    *(f"PREFECT_RESILIENCE_{name.upper()}" for name in ResilienceSettings.model_fields),
)


@lru_cache(maxsize=16)
def _read(variables: tuple[str | None, ...], home: Path) -> ResilienceSettings:
    values = {name: _own(name) for name in ResilienceSettings.model_fields}
    try:
        return ResilienceSettings(**{name: value for name, value in values.items() if value is not None})
    except ConfigurationError as error:
        raise ConfigurationError(
            f"the settings cannot be read: check the variables PREFECT_RESILIENCE_* ({error})"
        ) from None


def _own(name: str) -> Any:
    """A setting of this package; None if nothing sets it."""
    value = os.environ.get("RESILIENCE_ENABLED") if name == "enabled" else None
    try:
        return value_of(name.upper(), "resilience") if value is None else value
    except Unclear:
        return None


def prefect_home() -> Path:
    """Prefect's home. Prefect is imported only if its files are not clear. Raises ConfigurationError."""
    unclear: object = ""
    if "prefect" not in sys.modules:
        try:
            value = value_of("HOME")
            if value is None or isinstance(value, str):
                return Path("~/.prefect" if value is None else value).expanduser()
            unclear = f"home = {value!r} is no path"
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
    value = _own("enabled")
    return value is None or str(value).strip().lower() not in _OFF
