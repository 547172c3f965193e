"""What the documentation says, as its reader does it: every block of Python is run, every command is one."""

from __future__ import annotations

import ast
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import pytest
from cyclopts import CycloptsError

from prefect_resilience import CircuitBreaker
from prefect_resilience.durable.effects.ledger import open_ledger, place_of
from prefect_resilience.durable.effects.model import Succeeded
from prefect_resilience.operations.cli.app import app
from tests.docs.pages import (
    DOCS,
    PACKAGE,
    ROOT,
    WITH_TESTS_OF_THEIR_OWN,
    blocks,
    commands,
    pages,
)
from tests.docs.reading import Reader

pytestmark = pytest.mark.docs

PAGES = pages()
README = ROOT / "README.md"
PAPERS = [
    README,
    *(ROOT / name for name in ("ARCHITECTURE.md", "CONTRIBUTING.md", "SECURITY.md", "CHANGELOG.md")),
]
WITH_CODE = [
    page
    for page in [README, *PAGES]
    if page.name not in WITH_TESTS_OF_THEIR_OWN and any(block.language == "python" for block in blocks(page))
]
# What a reader's shell has beside the command of this package
OTHERS = {
    "docker",
    "kubectl",
    "export",
    "make",
    "pip",
    "prefect",
    "pytest",
    "python",
    "python3.11",
    ".venv/bin/python",
}
OF_THE_SHELL = {".", "cat", "cd", "echo", "kill", "rm", "sed", "sleep", "until", "yes"}
PROGRAM = "prefect-resilience"
INLINE = re.compile(rf"`({PROGRAM} [^`\n]+)`")


def id_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


@pytest.mark.parametrize("page", WITH_CODE, ids=id_of)
def test_every_block_runs(page: Path, as_a_reader: Path) -> None:
    Reader(as_a_reader).follow(page)


def test_a_printed_output_is_compared(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    code = "```python\nprint('one')\nprint('two', 0.25)\n```\n\nIt prints:\n\n```text\n{}\n```\n"
    for shown in ("one\ntwo 0.25", "one\ntwo ...", "...\ntwo 0.25"):
        page.write_text(code.format(shown))
        Reader(tmp_path).follow(page)
    for shown in ("one", "one\ntwo", "two 0.25", "one\ntwo 0.25\nthree"):
        page.write_text(code.format(shown))
        with pytest.raises(AssertionError, match="block 1 prints"):
            Reader(tmp_path).follow(page)


def test_the_other_pages_have_tests_of_their_own() -> None:
    for name, test in WITH_TESTS_OF_THEIR_OWN.items():
        assert (DOCS / name).exists()
        assert name in (ROOT / test).read_text(), f"{test} does not run {name}"


def test_what_the_architecture_says_where_to_find_is_there() -> None:
    table = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8").partition("| function |")[2]
    rows = [
        line.split("|")[2:4] for line in table.splitlines() if line.count("`") > 2 and line.count("|") == 4
    ]
    assert len(rows) > 10
    for place, function in rows:
        first, *beside = (Path(name) for name in re.findall(r"`([\w./]+\.py)`", place))
        files = [first, *(file if file.parent.name else first.parent / file for file in beside)]
        text = "".join((ROOT / PACKAGE / file).read_text(encoding="utf-8") for file in files)
        for name in re.findall(r"`(?:\w+\.)?(\w+)`", function):
            assert f"def {name}(" in text, (files, name)


def inline(page: Path) -> list[str]:
    """The commands of this package within a sentence, as in `prefect-resilience doctor`."""
    return INLINE.findall(page.read_text(encoding="utf-8"))


@pytest.mark.parametrize(
    "page", [page for page in [*PAGES, *PAPERS] if [*commands(page), *inline(page)]], ids=id_of
)
def test_every_command_is_one(page: Path) -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for line in [*commands(page), *inline(page)]:
        program, *words = shlex.split(line.partition(" > ")[0], comments=True)
        if program == PROGRAM:
            try:
                app.parse_args(words, print_error=False, exit_on_error=False)
            except CycloptsError as error:
                pytest.fail(f"{line}\n{error}")
        elif program == "make":
            assert set(words) <= targets, line
        else:
            assert program in OTHERS | OF_THE_SHELL, line


def commands_of_operators() -> list[list[str]]:
    """The commands of the README's section *Operations*. `doctor`, `install` and `report` need a server,
    `rehearse` a program: they have tests of their own."""
    section = README.read_text(encoding="utf-8").partition("\n## Operations\n")[2].partition("\n## ")[0]
    lines = [shlex.split(line, comments=True) for line in section.splitlines() if line.startswith(PROGRAM)]
    return [words[1:] for words in lines if words[1] not in ("doctor", "install", "rehearse", "report")]


def test_the_commands_of_operators_run(as_a_reader: Path) -> None:
    (plan,) = [block.text for block in blocks(DOCS / "plans.md") if block.file == "research.yaml"]
    (as_a_reader / "research.yaml").write_text(plan)
    store = f"sqlite:///{as_a_reader}/operators.db"
    CircuitBreaker("drug-labels", store=store).reset("it is new")
    ledger = open_ledger(store)
    ledger.intend(place_of("my-batch", "k"), "c", "external", {"key": "k", "batch": "my-batch"})
    ledger.report(place_of("my-batch", "k"), Succeeded("c", {"as": "json", "value": 1}))
    environment = {**os.environ, "PREFECT_RESILIENCE_STORE_URL": store}
    said: dict[str, str] = {}
    for words in commands_of_operators():
        done = subprocess.run(
            [sys.executable, "-m", "prefect_resilience", *words],
            env=environment,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=60,
            check=False,
        )
        assert done.returncode == 0, f"{words}\n{done.stdout}{done.stderr}"
        said[" ".join(words[:2])] = done.stdout
    assert said.keys() >= {"circuits open", "batches recover", "dead-letters replay", "plan validate"}
    assert "drug-labels" in said["circuits list"]


def beyond_plain_prefect(page: Path) -> list[str]:
    """The rows of the table that says what one gets; their links as the README has them."""
    section = page.read_text(encoding="utf-8").partition("\n## What you get beyond plain Prefect\n")[2]
    rows = section.strip().partition("\n\n")[0].splitlines()
    return rows if page == README else [row.replace("](", "](docs/") for row in rows]


def test_the_readme_and_the_first_page_promise_the_same() -> None:
    assert len(beyond_plain_prefect(README)) > 2
    assert beyond_plain_prefect(DOCS / "index.md") == beyond_plain_prefect(README)


def test_the_readme_is_short() -> None:
    """One sentence, one picture, and code with what it prints, within 150 lines."""
    text = README.read_text(encoding="utf-8")
    assert len(text.splitlines()) <= 150
    assert len(re.findall(r"!\[[^\]]*\]\(", text)) == 1
    languages = [block.language for block in blocks(README)]
    code = languages.index("python")
    assert languages[code + 1] == "text"
    assert len([line for line in blocks(README)[code].text.splitlines() if line]) <= 10


def test_the_readme_and_the_first_page_have_the_same_code() -> None:
    assert [b for b in blocks(README) if b.language != "sh"] == blocks(DOCS / "index.md")


def test_it_is_said_where_tests_are() -> None:
    """Folders that are no room's are named, and so are rooms that have none."""
    rooms = {init.parent.name for init in (ROOT / PACKAGE).glob("*/__init__.py")}
    folders = {folder.name for folder in (ROOT / "tests").iterdir() if any(folder.rglob("*.py"))}
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    section = text.partition("\n## How tests are laid out\n")[2].partition("\n## ")[0]
    named = set(re.findall(r"`tests/(\w+)/`", section))
    assert named - rooms == folders - rooms
    without = section.partition("a folder for each folder of the package but ")[2].partition(", which")[0]
    assert set(re.findall(r"`(\w+)`", without)) == rooms - folders


@pytest.mark.parametrize("page", ["ARCHITECTURE.md", "CONTRIBUTING.md"])
def test_the_files_that_are_named_exist(page: str) -> None:
    """Names are relative to the repository, to the package, or to a folder in it that is named too."""
    words = re.findall(r"`([\w./]+)`", (ROOT / page).read_text(encoding="utf-8"))
    named = [word for word in words if word.endswith((".py", ".txt", ".js", ".md", ".toml"))]
    places = {ROOT, ROOT / PACKAGE} | {(ROOT / PACKAGE / word).parent for word in named}
    places |= {ROOT / PACKAGE / word for word in words if word.endswith("/")}
    assert named
    assert [name for name in named if not any((place / name).exists() for place in places)] == []


def test_languages_of_blocks_are_known() -> None:
    known = {"python", "sh", "text", "yaml", "json"}
    strange = {(id_of(page), block.language) for page in PAGES for block in blocks(page)}
    assert {one for one in strange if one[1] not in known} == set()


def test_the_architecture_names_what_registers_itself_at_import() -> None:
    """A call of an imported `add_...` or `register_...` at the top of a module."""
    registering = {
        str(file.relative_to(ROOT / PACKAGE))
        for file in (ROOT / PACKAGE).rglob("*.py")
        for node in ast.parse(file.read_text(encoding="utf-8")).body
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Call)
        if ast.unparse(node.value.func).startswith(("add_", "register_"))
    }
    text = (ROOT / "ARCHITECTURE.md").read_text(encoding="utf-8")
    paragraph = text.partition("register themselves")[2].partition("`add_notes_source`")[0]
    assert registering == set(re.findall(r"`([\w/]+\.py)`", paragraph))
