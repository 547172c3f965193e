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
    """What the environment says.

    enabled: `RESILIENCE_ENABLED=false` turns every wrapper into a plain Prefect task, for debugging.
    store_url: where circuits, effects, error budgets and dead letters live; a SQLite file in Prefect's home
        by default.
    circuit_store_url: where the circuits live, if elsewhere.
    timeouts: seconds by the name of an operation, for `timeout="llm-call"`; merged over the defaults.
    """

    model_config: ClassVar[SettingsConfigDict] = SettingsConfigDict(
        env_prefix="PREFECT_RESILIENCE_", extra="ignore", frozen=True, defer_build=True
    )

    enabled: bool = Field(
        default=True,
        validation_alias=AliasChoices("RESILIENCE_ENABLED", "PREFECT_RESILIENCE_ENABLED"),
    )
    store_url: str = Field(default_factory=lambda: default_store_url())
    circuit_store_url: str | None = None
    timeouts: dict[str, float] = Field(default_factory=dict[str, float])

    @property
    def operations(self) -> dict[str, float]:
        return {**DEFAULT_OPERATIONS, **self.timeouts}


def default_store_url() -> str:
    return f"sqlite:///{Path(PREFECT_HOME.value()) / 'resilience.db'}"


def current_settings() -> ResilienceSettings:
    """The settings as the environment stands now. They are asked for before every effect, so they are read
    again only when a variable, or Prefect's home, is another one."""
    return _read(tuple(map(os.environ.get, _VARIABLES)), PREFECT_HOME.value())


_VARIABLES = (
    "RESILIENCE_ENABLED",
    *(f"PREFECT_RESILIENCE_{name.upper()}" for name in ResilienceSettings.model_fields),
)


@lru_cache(maxsize=16)
def _read(variables: tuple[str | None, ...], home: Path) -> ResilienceSettings:
    return ResilienceSettings()


def store_url() -> str:
    """Where everything lives that was given no store of its own."""
    return current_settings().store_url


def circuit_store_url() -> str:
    """Where circuits live that were given no store of their own."""
    settings = current_settings()
    return settings.circuit_store_url or settings.store_url


def enabled() -> bool:
    """Whether resilience is switched on; asked on every call, so it looks at the two variables alone."""
    said = os.environ.get("RESILIENCE_ENABLED") or os.environ.get("PREFECT_RESILIENCE_ENABLED")
    return said is None or said.strip().lower() not in _OFF
