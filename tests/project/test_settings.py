"""The settings are those of the environment as it stands, however often they are asked for."""

from dataclasses import FrozenInstanceError
from pathlib import Path

import pytest
from prefect.settings import PREFECT_HOME, temporary_settings

from prefect_resilience.base.edge.current_settings import circuit_store_url, current_settings

PREFIX = "PREFECT_RESILIENCE_"


def test_a_change_of_the_environment_is_seen(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(PREFIX + "STORE_URL", "memory://one")
    assert current_settings().store_url == "memory://one"
    assert current_settings() is current_settings()
    monkeypatch.setenv(PREFIX + "STORE_URL", "memory://two")
    assert current_settings().store_url == circuit_store_url() == "memory://two"
    monkeypatch.setenv(PREFIX + "CIRCUIT_STORE_URL", "memory://three")
    assert circuit_store_url() == "memory://three"
    monkeypatch.setenv(PREFIX + "TIMEOUTS", '{"call": 7}')
    assert current_settings().operations["call"] == 7
    for name in ("RESILIENCE_ENABLED", PREFIX + "ENABLED"):
        monkeypatch.setenv(name, "false")
        assert not current_settings().enabled
        monkeypatch.delenv(name)
        assert current_settings().enabled


def test_the_store_is_in_the_home_of_prefect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(PREFIX + "STORE_URL", raising=False)
    for home in (tmp_path / "one", tmp_path / "two"):
        with temporary_settings({PREFECT_HOME: home}):
            assert current_settings().store_url == f"sqlite:///{home / 'resilience.db'}"


def test_nobody_changes_them_for_others() -> None:
    with pytest.raises(FrozenInstanceError):
        current_settings().store_url = "memory://mine"  # pyright: ignore[reportAttributeAccessIssue]
