"""The table that the examples with language models print, and a process that leaves nothing behind."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory

from prefect.settings import get_current_settings
from rich import box
from rich.console import Console
from rich.table import Table

WIDTH = 110


class Board:
    """Rows of questions: what the providers did, who answered, and what."""

    def __init__(self, *providers: str) -> None:
        self.console = Console(width=WIDTH, highlight=False)
        self.table = Table(box=box.SIMPLE, width=WIDTH)
        for title in ("asked", *providers, "answered by", "answer"):
            self.table.add_column(title, overflow="fold")

    def answer(self, asked: str, given: Mapping[str, list[str]], by: str, value: object) -> None:
        did = [", ".join(given.get(name, [])) or "-" for name in ("anthropic", "openai")]
        self.table.add_row(asked, *did, by, str(value).strip())

    def line(self, *cells: object) -> None:
        self.table.add_row(*(str(cell) for cell in cells))

    def show(self) -> None:
        self.console.print(self.table)


def quietly(module: str, work: Callable[[], None]) -> None:
    """Run the example in a process whose settings leave nothing behind on this machine, and exit."""
    if sys.argv[1:] == ["run"]:
        work()
        return
    with TemporaryDirectory(prefix="llm-", ignore_cleanup_errors=True) as folder:
        settings = {
            "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
            "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "90",
        }
        if get_current_settings().api.url is None:
            settings["PREFECT_HOME"] = folder
            print("No Prefect API is configured, so an ephemeral one starts: some seconds ...", flush=True)
        # Circuits start closed every time
        env = settings | os.environ | {"PREFECT_RESILIENCE_STORE_URL": f"sqlite:///{folder}/resilience.db"}
        command = [sys.executable, "-m", module, "run"]
        root = Path(__file__).parent.parent
        sys.exit(subprocess.run(command, env=env, cwd=root, check=False).returncode)
