"""What the documentation says, as its reader does it: every block of Python is run, every command is one."""

from __future__ import annotations

import re
import shlex
from pathlib import Path
from typing import Any

import pytest
import yaml
from cyclopts import CycloptsError

from prefect_resilience.cli.app import app
from tests.docs.pages import DOCS, ROOT, WITH_TESTS_OF_THEIR_OWN, blocks, commands, pages

PAGES = pages()
PAPERS = [ROOT / name for name in ("ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")]
WITH_CODE = [
    page
    for page in PAGES
    if page.name not in WITH_TESTS_OF_THEIR_OWN and any(block.language == "python" for block in blocks(page))
]
# What a reader's shell has beside the command of this package
OTHERS = {"export", "make", "pip", "prefect", "pytest", "python", ".venv/bin/python"}


def id_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", WITH_CODE, ids=id_of)
def test_every_block_runs(page: Path, as_a_reader: Path) -> None:
    names: dict[str, Any] = {"__name__": page.stem}
    for number, block in enumerate(blocks(page), start=1):
        if block.file:
            (as_a_reader / block.file).write_text(block.text)
        elif block.language == "python":
            exec(compile(block.text, f"{id_of(page)}, block {number}", "exec"), names)


def test_the_other_pages_have_tests_of_their_own() -> None:
    for name, test in WITH_TESTS_OF_THEIR_OWN.items():
        assert (DOCS / name).exists()
        assert name in (ROOT / test).read_text(), f"{test} does not run {name}"


@pytest.mark.parametrize("page", [page for page in [*PAGES, *PAPERS] if list(commands(page))], ids=id_of)
def test_every_command_is_one(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for line in commands(page):
        program, *words = shlex.split(line.partition(" > ")[0], comments=True)
        if program == "prefect-resilience":
            try:
                app.parse_args(words, print_error=False, exit_on_error=False)
            except CycloptsError as error:
                pytest.fail(f"{line}\n{error}")
        elif program == "make":
            assert set(words) <= targets, line
        else:
            assert program in OTHERS, line


@pytest.mark.parametrize("page", [*PAGES, *PAPERS, ROOT / "README.md"], ids=id_of)
def test_it_speaks_of_files_that_there_are(page: Path) -> None:
    """Links and pictures inside of the repository; `make docs` looks at those inside of the pages as well."""
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{id_of(page)} links to {target}"


def test_languages_of_blocks_are_known() -> None:
    known = {"python", "sh", "text", "yaml", "json"}
    strange = {(id_of(page), block.language) for page in PAGES for block in blocks(page)}
    assert {one for one in strange if one[1] not in known} == set()


def test_the_forms_for_issues_are_forms() -> None:
    for form in (ROOT / ".github" / "ISSUE_TEMPLATE").glob("*.yml"):
        read = yaml.safe_load(form.read_text())
        if form.name != "config.yml":
            assert {"name", "description", "body"} <= read.keys(), form.name
