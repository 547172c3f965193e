"""Pickles that name public classes by the modules they were in before the move are still read."""

from __future__ import annotations

import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import prefect_resilience
from prefect_resilience.base.moved import find_moved_modules

ROWS = Path(__file__).with_name("moved_classes.txt").read_text(encoding="utf-8").split()


@pytest.mark.parametrize("row", ROWS)
def test_a_class_is_found_by_its_old_path(row: str) -> None:
    module, _, name = row.partition(":")
    found = pickle.loads(f"c{module}\n{name}\n.".encode())
    assert isinstance(found, type)
    assert found.__name__ == name
    assert found is getattr(prefect_resilience, name, found)


def test_a_class_that_was_renamed_is_found_by_its_old_name() -> None:
    found = pickle.loads(b"cprefect_resilience.plans.model\nTransition\n.")
    assert found.__name__ == "PlanTransition"


def test_a_path_that_never_was_is_not_found() -> None:
    with pytest.raises(ModuleNotFoundError, match="circutis"):
        __import__("prefect_resilience.circutis")
    with pytest.raises(ImportError, match="NoSuchClass"):
        exec("from prefect_resilience.circuits.model import NoSuchClass")


def test_a_pickle_is_read_where_nothing_was_imported_before() -> None:
    pickled = b"cprefect_resilience.circuits.model\nCircuitPolicy\n."
    text = f"import pickle; print(pickle.loads({pickled!r}).__module__)"
    done = subprocess.run([sys.executable, "-c", text], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "prefect_resilience.guards.circuits.model"


def test_the_finder_is_installed_once() -> None:
    before = len(sys.meta_path)
    find_moved_modules()
    assert len(sys.meta_path) == before
