"""The processes of the digest: one that is killed and started again, on a Prefect API that they share."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from prefect.server.api.server import SubprocessASGIServer
from prefect.settings import get_current_settings
from rich.console import Console

from flows.own_process import HERE

if TYPE_CHECKING:  # other examples use `shared_api` without a mail server
    from flows.digest_receivers import Board

CONSOLE = Console(width=100)


def run_until_it_ends(command: list[str], board: Board) -> int:
    """Start it, kill it whenever the board has a bad moment, and start it again; how often it was killed."""
    kills = 0
    while True:
        process = subprocess.Popen(command, cwd=HERE)
        while process.poll() is None and not board.bad_moment.wait(0.05):
            pass
        if not board.bad_moment.is_set():
            if process.returncode:
                raise SystemExit(process.returncode)
            return kills
        process.kill()
        process.wait()
        board.bad_moment.clear()
        kills += 1
        word = {"taken": "the board had it and had not said so", "lost": "it never got there"}
        moment = word[board.moments[board.arrived]]
        CONSOLE.print(f"[red]Killed[/] while post {board.arrived} was on its way: {moment}. Started again.")


@contextmanager
def shared_api() -> Iterator[None]:
    """The Prefect API of all processes that are started inside: the configured one, else one of their own."""
    if get_current_settings().api.url is not None:
        yield
        return
    CONSOLE.print("No Prefect API is configured, so one starts for all processes: some seconds ...")
    with SubprocessASGIServer() as api:
        os.environ["PREFECT_API_URL"] = api.api_url
        yield
