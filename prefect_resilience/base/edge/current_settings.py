"""Settings, read from the environment: `PREFECT_RESILIENCE_...`."""

from __future__ import annotations

import os
from functools import lru_cache
from pathlib import Path
from typing import ClassVar

from prefect.settings import PREFECT_HOME
from pydantic import AliasChoices, Field
from pydantic_settings import BaseSettings, SettingsConfigDict

from prefect_resilience.base.durations import DEFAULT_OPERATIONS

_OFF = frozenset({"0", "false", "no", "off", "f", "n"})


class ResilienceSettings(BaseSettings):
    """The settings from the environment.

    enabled: `RESILIENCE_ENABLED=false` turns every wrapper into a plain Prefect task, for debugging.
    store_url: the store of circuits, effects, error budgets and dead letters; by default a SQLite file in
        Prefect's home.
    circuit_store_url: the store of the circuits, if it is another one.
    timeouts: seconds by the name of an operation, for `timeout="llm-call"`; merged over the defaults.
    """

    model_config: ClassVar[SettingsConfigDict] = SettingsConfigDict(
        env_prefix="PREFECT_RESILIENCE_", extra="ignore", frozen=True, defer_build=True
    )

    enabled: bool = Field(
        default=True, validation_alias=AliasChoices("RESILIENCE_ENABLED", "PREFECT_RESILIENCE_ENABLED")
    )
    store_url: str = Field(default_factory=lambda: f"sqlite:///{PREFECT_HOME.value()}/resilience.db")
    circuit_store_url: str | None = None
    timeouts: dict[str, float] = Field(default_factory=dict[str, float])

    @property
    def operations(self) -> dict[str, float]:
        return {**DEFAULT_OPERATIONS, **self.timeouts}


def current_settings() -> ResilienceSettings:
    """The settings from the current environment. They are needed before every effect, so they are cached and
    read again only when a variable or Prefect's home has changed."""
    return _read(tuple(map(os.environ.get, _VARIABLES)), PREFECT_HOME.value())


_VARIABLES = (
    "RESILIENCE_ENABLED",
    *(f"PREFECT_RESILIENCE_{name.upper()}" for name in ResilienceSettings.model_fields),
)


@lru_cache(maxsize=16)
def _read(variables: tuple[str | None, ...], home: Path) -> ResilienceSettings:
    return ResilienceSettings()


def store_url() -> str:
    """The default store of everything."""
    return current_settings().store_url


def circuit_store_url() -> str:
    """The default store of circuits."""
    settings = current_settings()
    return settings.circuit_store_url or settings.store_url


def is_enabled() -> bool:
    """Whether resilience is switched on. Runs on every call, so it reads only the two variables."""
    text = os.environ.get("RESILIENCE_ENABLED") or os.environ.get("PREFECT_RESILIENCE_ENABLED")
    return text is None or text.strip().lower() not in _OFF
