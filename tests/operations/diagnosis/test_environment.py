"""What is seen on this machine: versions, stores and clocks."""

import re

import pytest

from prefect_resilience.operations.diagnosis import environment


def test_here_everything_fits():
    assert list(environment.versions()) == []
    assert list(environment.store()) == []


@pytest.mark.parametrize(
    ("package", "version", "says"),
    [
        ("prefect", "3.7.9", "it is 3.7.9, and prefect-resilience needs prefect<4,>=3.8"),
        ("redis", None, "it is not installed, and prefect-resilience needs redis>=5"),
        ("redis", "4.6.0", "it is 4.6.0"),
        ("jsonpath-python", "1.1.6", "it overwrites files of python-jsonpath"),
    ],
)
def test_versions_that_clash(monkeypatch: pytest.MonkeyPatch, package: str, version: str | None, says: str):
    monkeypatch.setenv("PREFECT_RESILIENCE_CIRCUIT_STORE_URL", "redis://127.0.0.1:9/0")
    real = environment._version
    monkeypatch.setattr(environment, "_version", lambda name: version if name == package else real(name))
    (found,) = environment.versions()
    assert found.check == "versions"
    assert package in found.where
    assert says in found.says
    assert "pip install" in found.mend


def test_a_driver_is_needed_only_for_a_store_of_its_kind(monkeypatch: pytest.MonkeyPatch):
    real = environment._version
    monkeypatch.setattr(environment, "_version", lambda name: None if name == "redis" else real(name))
    assert list(environment.versions()) == []


@pytest.mark.parametrize(
    ("url", "says"),
    [
        ("redis://:hunter2secret@127.0.0.1:9/0", "it is unavailable"),
        ("sqlite:////dev/null/fleet.db", "it is unavailable"),
        ("memory://", "it is the memory of one process"),
        ("mongodb://x", "no store has URLs such as 'mongodb://x'"),
    ],
)
def test_a_store_that_will_not_do(monkeypatch: pytest.MonkeyPatch, url: str, says: str):
    monkeypatch.setenv("PREFECT_RESILIENCE_STORE_URL", url)
    (found,) = environment.store()
    assert found.check == "store"
    assert says in found.says
    assert "hunter2secret" not in found.model_dump_json()


def test_settings_that_cannot_be_read(monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("PREFECT_RESILIENCE_TIMEOUTS", "not json")
    (found,) = environment.store()
    assert "the settings cannot be read" in found.says


@pytest.mark.parametrize("skew", [-30.0, 30.0])
def test_a_clock_that_differs_from_the_stores(monkeypatch: pytest.MonkeyPatch, redis_url: str, skew: float):
    monkeypatch.setenv("PREFECT_RESILIENCE_STORE_URL", redis_url)
    assert [one for one in environment.store() if one.check == "clocks"] == []
    real = environment.time.time
    monkeypatch.setattr(environment, "time", type("Clock", (), {"time": staticmethod(lambda: real() - skew)}))
    (found,) = (one for one in environment.store() if one.check == "clocks")
    assert found.where == redis_url
    assert ("ahead of" if skew > 0 else "behind") in found.says
    # Half of the way there and back is taken off it.
    assert 20 < float(re.search(r"is ([\d.]+) s", found.says)[1]) <= 30
