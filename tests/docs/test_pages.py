"""What the documentation says is so: its code runs, its links lead somewhere, its tables are complete."""

import ast
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from cyclopts import CycloptsError

from prefect_resilience import CircuitBreaker
from prefect_resilience.durable.effects.ledger import open_ledger, place_of
from prefect_resilience.durable.effects.model import Succeeded
from prefect_resilience.operations.cli.app import app
from tests.docs.pages import DOCS, PACKAGE, ROOT, WITH_TESTS_OF_THEIR_OWN, blocks, commands, pages
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


PAGE = DOCS / "operations.md"
SENDING = {"emit", "_emit", "send_event", "emit_event", "_event", "_report", "CallEvent", "_events"}
STATES = {"Completed", "Failed", "Pending", "_make_completed"}
EVENT = re.compile(r"[a-z]+(?:-[a-z]+)*\.[a-z]+(?:-[a-z]+)*")


@cache
def modules() -> dict[Path, ast.Module]:
    return {path: ast.parse(path.read_text(encoding="utf-8")) for path in (ROOT / PACKAGE).rglob("*.py")}


def texts(tree: ast.AST) -> set[str]:
    return {
        node.value
        for node in ast.walk(tree)
        if isinstance(node, ast.Constant) and isinstance(node.value, str)
    }


def assigned(tree: ast.AST) -> dict[str, set[str]]:
    """The texts in what is assigned to each name, and in the tables that it is taken from."""
    found: dict[str, set[str]] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.Assign):
            targets = [part.id for part in ast.walk(node.targets[0]) if isinstance(part, ast.Name)]
            for name in targets:
                found.setdefault(name, set()).update(may_be(node.value, found))
    return found


@cache
def constants() -> dict[str, set[str]]:
    """The texts of constants, which other modules import."""
    return {
        node.targets[0].id: {node.value.value}
        for tree in modules().values()
        for node in tree.body
        if isinstance(node, ast.Assign)
        and isinstance(node.targets[0], ast.Name)
        and isinstance(node.value, ast.Constant)
        and isinstance(node.value.value, str)
    }


def may_be(value: ast.AST, names: dict[str, set[str]]) -> set[str]:
    """The texts that an argument may be: those in it, and those that its names were given."""
    used = [node.id for node in ast.walk(value) if isinstance(node, ast.Name)]
    return texts(value).union(*(names.get(name, ()) for name in used))


def calls(tree: ast.AST, functions: set[str]) -> Iterator[ast.Call]:
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            called = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            if called in functions:
                yield node


def events_of_the_code() -> set[str]:
    found: set[str] = set()
    for tree in modules().values():
        names = {**constants(), **assigned(tree)}
        for call in calls(tree, SENDING):
            found.update(*(may_be(value, names) for value in call.args[:3]))
    return {name for name in (text.lstrip(".") for text in found) if EVENT.fullmatch(name)}


def states_of_the_code() -> set[str]:
    found: set[str] = set()
    for path, tree in modules().items():
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef):
                names = assigned(function)
                for call in calls(function, STATES):
                    given = [word.value for word in call.keywords if word.arg == "name"]
                    found.update(*(may_be(value, names) for value in given or call.args[:1]))
        if "routing" in path.parts:  # whose nodes all end by `ended(name, why, value)`
            found.update(*(texts(call.args[0]) for call in calls(tree, {"ended"})))
    return found


def first_column(heading: str) -> list[str]:
    """The code in the first column of the first table under a heading of the page."""
    section = PAGE.read_text(encoding="utf-8").partition(f"\n## {heading}\n")[2].partition("\n## ")[0]
    rows = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    return [name for row in rows for name in re.findall(r"`([^`]+)`", row)]


def test_the_table_has_the_events_that_are_sent() -> None:
    named = first_column("Events")
    assert len(named) == len(set(named))
    assert set(named) == events_of_the_code()


def test_the_table_has_every_state_that_is_given() -> None:
    given = states_of_the_code()
    # That the reading of the code finds any of each kind: by a name, by a choice, by a node of routing
    assert {"Replayed", "Decomposed", "Routed", "NotReady"} <= given
    named = first_column("States")
    assert len(named) == len(set(named))
    assert given - set(named) == set()
