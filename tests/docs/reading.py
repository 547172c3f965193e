"""A page as its reader follows it: files are saved, code and commands run, and their outputs compared."""

import io
import shlex
from collections.abc import Callable
from contextlib import redirect_stdout
from pathlib import Path
from typing import Any

from tests.docs.pages import Block, blocks, is_output

Run = Callable[..., Any]


class Reader:
    """Follows pages in one folder.

    run: runs a command of `program`; its result has `code`, `out`, `err`. Without it no command is run.
    """

    program = "prefect-resilience"

    def __init__(self, folder: Path, run: Run | None = None) -> None:
        self.folder = folder
        self.run = run
        self.names: dict[str, Any] = {}
        self.compared = 0

    def follow(self, page: Path, *, every_command: bool = False, code: bool = True) -> None:
        """Run the page. Commands without an output on the page are run only with `every_command`.

        code: whether to run the blocks of Python, too.
        """
        self.names["__name__"] = page.stem
        found = blocks(page)
        others: list[str] = []
        for number, block in enumerate(found, start=1):
            shown = found[number] if number < len(found) and found[number].language == "text" else None
            place = f"{page.name}, block {number}"
            if block.file:
                (self.folder / block.file).write_text(block.text)
                continue
            if block.language == "python" and code:
                printed = self.print_of(block, place)
                shown = shown if "print(" in block.text else None
            elif block.language == "sh" and self.run and (shown is not None or every_command):
                printed = "".join(map(self.type, block.text.splitlines()))
            else:
                continue
            if shown is not None:
                self.compared += 1
                if not is_output(shown.text, printed):
                    others.append(f"{place} prints:\n{printed}")
        assert not others, "\n\n".join(others)

    def print_of(self, block: Block, place: str) -> str:
        printed = io.StringIO()
        with redirect_stdout(printed):
            exec(compile(block.text, place, "exec"), self.names)
        return printed.getvalue()

    def type(self, line: str) -> str:
        """Run a line as a shell does: a command, where its output goes, and how it exits."""
        words, _, comment = line.partition(" #")
        words, _, file = words.partition(" > ")
        program, *arguments = shlex.split(words)
        assert program == self.program, line
        assert self.run is not None
        done = self.run(*arguments)
        assert done.code == (1 if "exits with 1" in comment else 0), f"{line}\n{done.out}{done.err}"
        if file:
            (self.folder / file.strip()).write_text(done.out)
        return "" if file else str(done.out)
