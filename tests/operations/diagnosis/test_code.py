"""What is seen in source files that are not run."""

from collections.abc import Callable
from pathlib import Path

import pytest

from prefect_resilience.operations.diagnosis.project import read_file
from prefect_resilience.operations.users_code import python_files

WRONG = [
    ("from prefect.concurrency.sync import concurrency\nwith concurrency('db'): ...", "concurrency", 2),
    (
        "from prefect.concurrency.asyncio import concurrency as c\nasync def f():\n  async with c('d'): ...",
        "concurrency",
        3,
    ),
    ("from prefect.concurrency.sync import rate_limit\nrate_limit('api', strict=False)", "concurrency", 2),
    ("import prefect.concurrency.sync\nprefect.concurrency.sync.concurrency('db')", "concurrency", 2),
    ("from prefect import task\n@task(timeout_seconds=3)\ndef slow(): ...", "timeouts", 2),
    ("import prefect\n@prefect.task(name='x', timeout_seconds=3)\ndef slow(): ...", "timeouts", 2),
    (
        "from prefect_resilience import resilient_task as r\n@r(timeout_seconds=3)\ndef slow(): ...",
        "timeouts",
        2,
    ),
    ("def broken(:", "code", None),
]
RIGHT = [
    "from prefect.concurrency.sync import concurrency\nwith concurrency('db', strict=True): ...",
    "from prefect.concurrency.sync import concurrency\nconcurrency('db', **options)",
    "from mine import concurrency\nconcurrency('db')",
    "def concurrency(name): ...\nconcurrency('db')",
    "from prefect import task\n@task(timeout_seconds=3)\nasync def slow(): ...",
    "from mine import task\n@task(timeout_seconds=3)\ndef slow(): ...",
    "from prefect_resilience import resilient_task\n@resilient_task(timeout=3)\ndef slow(): ...",
]


@pytest.mark.parametrize(("text", "check", "line"), WRONG)
def test_what_is_wrong_is_found_where_it_is(
    project: Callable[..., Path], text: str, check: str, line: int | None
):
    file = project(text)
    (found,), _ = read_file(file)
    assert found.check == check
    assert found.where == (f"{file}:{line}" if line else str(file))
    assert found.level == "wrong"
    assert found.says
    assert found.mend.endswith(".")


@pytest.mark.parametrize("text", RIGHT)
def test_what_is_right_is_left_alone(project: Callable[..., Path], text: str):
    assert read_file(project(text)) == ([], [])


def test_what_was_installed_in_a_folder_is_left_out(project: Callable[..., Path], tmp_path: Path):
    for name in ("a.py", "inner/b.py", ".venv/lib/c.py", "node_modules/d.py", "e.txt"):
        project("", name)
    assert [file.name for file in python_files(tmp_path)] == ["a.py", "b.py"]


POLICIES = """
import prefect_resilience
from prefect import task
from prefect_resilience import resilient_task
NAME = "elsewhere"

@resilient_task(policy="one")
def first(): ...

@prefect_resilience.resilient_task(name="x", policy="two")
async def second(): ...

@resilient_task(policy=NAME)
def third(): ...

@resilient_task
def fourth(): ...

@mine.resilient_task(policy="three")
def fifth(): ...
"""


def test_policies_are_found_that_are_named_in_so_many_words(project: Callable[..., Path]):
    file = project(POLICIES)
    assert read_file(file)[1] == [("one", "first", f"{file}:7"), ("two", "second", f"{file}:10")]
    assert read_file(project("def broken(:"))[1] == []
