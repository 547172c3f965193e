"""The soak in its short form, and that it would see what grows."""

from pathlib import Path

import pytest

from prefect_resilience import open_store
from prefect_resilience.testing import no_wait
from tests.soak import load as load_of_laps
from tests.soak.load import Load
from tests.soak.measuring import Sample, sample, trends

pytestmark = pytest.mark.api


def samples(**growth: float) -> list[Sample]:
    """A hundred samples of a process in which some things grow by so much with each."""
    usual = {"memory": 200.0, "threads": 10, "files": 20, "store": 4.0, "documents": 80}
    return [
        Sample(at=n, laps=n, **{name: value + growth.get(name, 0) * n for name, value in usual.items()})  # type: ignore[arg-type]
        for n in range(100)
    ]


@pytest.mark.parametrize(
    ("growth", "grows"),
    [
        ({}, set[str]()),
        ({"memory": 0.05}, set[str]()),
        ({"memory": 0.5}, {"memory"}),
        ({"threads": 0.1, "files": 0.1}, {"threads", "files"}),
        ({"store": 0.05}, {"store"}),
        ({"documents": 1}, {"documents"}),
        ({"memory": -1}, set[str]()),
    ],
)
def test_what_grows_is_seen(growth: dict[str, float], grows: set[str]) -> None:
    found = trends(samples(**growth))
    assert {trend.name for trend in found if not trend.flat} == grows


def test_a_few_laps_leave_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    database = tmp_path / "soak.db"
    url = f"sqlite:///{database}"
    monkeypatch.setenv("PREFECT_RESILIENCE_STORE_URL", url)
    monkeypatch.setattr(load_of_laps, "LETTERS", 4)
    load, taken = Load(), list[Sample]()
    try:
        with no_wait():
            for _ in range(2):
                for _ in range(2):
                    load.lap()
                taken.append(sample(0, load.laps, database, len(open_store(url).scan("", None, 1000))))
    finally:
        load.close()
    assert load.letters == 8
    first, last = taken
    assert last.threads <= first.threads + 2, taken
    assert last.files <= first.files + 3, taken
    assert last.documents <= first.documents + 20, taken
