"""The tutorial as its reader does it: each command is typed, each file is saved, each output is compared.

The pages are the only source. The first line of a block says in which terminal it is:

    ```sh                       typed in terminal 1, a line after the end of the one before
    ```sh, `# terminal 3`       typed in terminal 3; nothing waits for its end
    ```text                     all that the block before it printed in terminal 1
    ```text, `# terminal 3`     what terminal 3 shows next; waited for
    ```text with a line `^C`    Ctrl-C is pressed there

`...` stands for anything in a line, and alone in a line for any lines. Spaces and rules of tables may be
longer or shorter. A command ends with exit code 0 unless its line says otherwise (`# exits with 1`).

Different for the test: free ports, a wheel that leads to this checkout, the server of the test session in
place of the one that the reader starts, and a worker that looks for runs every second.
"""

import os
import re
import site
import sys
import zipfile
from collections.abc import Iterator
from importlib.metadata import distribution
from pathlib import Path
from tempfile import TemporaryDirectory
from urllib.parse import urlsplit

import pytest
from prefect.settings import PREFECT_API_URL

from tests.docs.pages import DOCS, ROOT, Block, blocks
from tests.docs.terminals import Terminal
from tests.free_ports import free_port

TUTORIAL = DOCS / "tutorial"
PARTS = sorted(TUTORIAL.glob("[1-9]_*.md"))
API, SUPPLIER, BANK = "4200", "8010", "8020"
SERVER = "prefect --no-prompt server start"
TERMINAL = re.compile(r"# terminal (\d)\n")
ENDS_WITH = re.compile(r"# exits with (\d+)")


class Reader:
    """Somebody who does the parts of the tutorial in their order, in one folder."""

    def __init__(self, folder: Path, api_url: str) -> None:
        self.folder = folder / "tutorial"
        self.folder.mkdir()
        make_wheel(self.folder)
        self.ports = {API: str(urlsplit(api_url).port), SUPPLIER: str(free_port()), BANK: str(free_port())}
        self.environment = environment(folder)
        self.terminals: dict[int, Terminal] = {}
        self.printed = ""
        self.done: list[Path] = []

    def do(self, part: Path) -> None:
        """Do this part, and first those before it that are not done yet."""
        for page in PARTS[: PARTS.index(part) + 1]:
            if page not in self.done:
                self.done.append(page)
                for number, block in enumerate(blocks(page), start=1):
                    self.follow(block, f"{page.name}, block {number}")

    def follow(self, block: Block, place: str) -> None:
        text = self.with_free_ports(block.text)
        named = TERMINAL.match(text)
        number = int(named[1]) if named else 1
        if block.file:
            (self.folder / block.file).write_text(text)
        elif block.language == "sh":
            self.type(number, text[named.end() if named else 0 :], place)
        elif named:
            self.look(number, text[named.end() :], place)
        else:
            assert block.language == "text", f"{place} is code without a file"
            assert output(text, whole=True).match(self.printed), f"{place} is not this:\n{self.printed}"

    def type(self, number: int, text: str, place: str) -> None:
        terminal = self.terminal(number)
        terminal.finish()
        terminal.output()
        for line in text.splitlines():
            if line == SERVER:
                continue
            terminal.type(line)
            if number == 1:
                says = ENDS_WITH.search(line)
                code = terminal.finish()
                assert code == (int(says[1]) if says else 0), f"{place}: {line}\n{terminal.unread()}"
        if number == 1:
            self.printed = f"{terminal.output()}\n"

    def look(self, number: int, text: str, place: str) -> None:
        terminal = self.terminal(number)
        for shown in re.split(r"^(\^C)\n", text, flags=re.MULTILINE):
            if shown == "^C":
                terminal.interrupt()
            elif shown:
                wanted = output(shown, whole=False)
                found = terminal.output(lambda text: match.end() if (match := wanted.match(text)) else None)  # noqa: B023
                assert found is not None, f"{place} is not this:\n{terminal.unread()}"

    def terminal(self, number: int) -> Terminal:
        if number not in self.terminals:
            self.terminals[number] = Terminal(self.folder, self.environment)
        return self.terminals[number]

    def with_free_ports(self, text: str) -> str:
        return re.sub("|".join(self.ports), lambda found: self.ports[found[0]], text)

    def close(self) -> None:
        for terminal in self.terminals.values():
            terminal.close()


def output(shown: str, *, whole: bool) -> re.Pattern[str]:
    """The pattern of an output as a page shows it: all that was printed, or the beginning of it."""
    lines = [line.strip() for line in shown.splitlines() if line.strip()]
    ways = [r"(?:[^\n]*\n)*?" if line == "..." else rf"\s*{_line(line)} *(?:\n|\Z)" for line in lines]
    if lines[-1] == "...":
        ways[-1] = r"[^\0]*"
    return re.compile("".join(ways) + (r"\s*\Z" if whole else ""))


def _line(shown: str) -> str:
    anything = r"[^\n]*?".join(map(re.escape, shown.split("...")))
    return re.sub(r"(?:\\ )+", " +", re.sub("─+", "─+", anything))


def environment(folder: Path) -> dict[str, str]:
    """What the reader's shells have: a `python3.11`, nothing of these tests' settings, and no long pauses."""
    kept = {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("PREFECT_", "RESILIENCE_", "COV_", "PYTEST_", "VIRTUAL_ENV", "PYTHON"))
    }
    programs = folder / "bin"
    programs.mkdir()
    # A new environment without pip is made in a tenth of the time
    for name, command in {
        "python3.11": f'{sys.executable} "$@" --without-pip',
        "pip": f'{sys.executable} -m pip --python "$VIRTUAL_ENV" --disable-pip-version-check "$@"',
    }.items():
        (programs / name).write_text(f"#!/bin/sh\nexec {command}\n")
        (programs / name).chmod(0o755)
    return kept | {
        "PATH": f"{programs}{os.pathsep}{os.environ['PATH']}",
        "HOME": str(folder),
        "NO_COLOR": "1",
        "VIRTUAL_ENV_DISABLE_PROMPT": "1",
        "PREFECT_RUNNER_POLL_FREQUENCY": "1",
    }


def make_wheel(folder: Path) -> None:
    """A wheel with the commands of this package and of Prefect; its code is that of this checkout."""
    ours, prefects = distribution("prefect_resilience"), distribution("prefect")
    about = f"prefect_resilience-{ours.version}.dist-info"
    scripts = [
        f"{one.name} = {one.value}"
        for one in (*ours.entry_points, *prefects.entry_points)
        if one.group == "console_scripts"
    ]
    packages = next(path for path in site.getsitepackages() if path.endswith("site-packages"))
    files = {
        "checkout.pth": f"{packages}\n{ROOT}\n",
        f"{about}/METADATA": f"Metadata-Version: 2.1\nName: prefect_resilience\nVersion: {ours.version}\n",
        f"{about}/WHEEL": "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
        f"{about}/entry_points.txt": "\n".join(["[console_scripts]", *scripts, ""]),
    }
    files[f"{about}/RECORD"] = "".join(f"{name},,\n" for name in files)
    with zipfile.ZipFile(folder / f"prefect_resilience-{ours.version}-py3-none-any.whl", "w") as wheel:
        for name, text in files.items():
            wheel.writestr(name, text)


@pytest.fixture(scope="module")
def reader(prefect_api: None) -> Iterator[Reader]:
    # pytest's folders have long names, and lines that show them would be wrapped
    with TemporaryDirectory() as folder:
        made = Reader(Path(folder), str(PREFECT_API_URL.value()))
        yield made
        made.close()


@pytest.mark.slow
@pytest.mark.api
@pytest.mark.timeout(300)
@pytest.mark.parametrize("part", PARTS, ids=lambda part: part.stem)
def test_what_a_part_says_happens(reader: Reader, part: Path) -> None:
    reader.do(part)


@pytest.mark.parametrize(
    ("shown", "same"),
    [
        ("one 1\n\ntwo  2 s", True),
        ("one ...\ntwo 2 s", True),
        ("...\ntwo 2 s", True),
        ("one 1\n...", True),
        ("one 1\n─\ntwo 2 s", False),
        ("one 1", False),
        ("two 2 s", False),
        ("one 1\ntwo 2", False),
        ("one 1\ntwo 2 s\nthree", False),
    ],
)
def test_an_output_is_compared(shown: str, same: bool) -> None:
    assert bool(output(shown, whole=True).match("one 1\ntwo 2 s\n\n")) is same


def test_a_terminal_shows_what_was_drawn_again(tmp_path: Path) -> None:
    terminal = Terminal(tmp_path, {"PATH": os.environ["PATH"]})
    try:
        terminal.type(r"printf 'first\n1 s\n'; read; printf '\033[1A\033[2K2 s\n'; false")
        assert terminal.output(lambda text: text.find("1 s") + 4 if "1 s" in text else None) == "first\n1 s\n"
        os.write(terminal._ours, b"\n")
        assert terminal.finish() == 1
        assert (terminal.output() or "").strip() == "2 s"
        terminal.type("sh -c 'echo started; exec sleep 60'")
        assert terminal.output(lambda text: len(text) if "started" in text else None) is not None
        terminal.interrupt()
    finally:
        terminal.close()
