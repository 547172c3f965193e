"""Runs an example in its own process, with settings that leave no files on this machine."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from tempfile import TemporaryDirectory

from prefect.settings import get_current_settings

HERE = Path(__file__).parent.parent


def run_apart(module: str, *words: str) -> int:
    """Run `python -m module run *words` with its own store, and an ephemeral API if none is configured.

    Returns the exit code. EXAMPLE_FOLDER names a folder that is removed afterwards.
    """
    with TemporaryDirectory(prefix="example-", ignore_cleanup_errors=True) as folder:
        settings = {
            # The examples print a short form; the UI has the whole log
            "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
            "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "90",
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        }
        if get_current_settings().api.url is None:
            settings["PREFECT_HOME"] = folder
            print("No Prefect API is configured. Starting an ephemeral one ...", flush=True)
        # Circuits start closed, and batches start empty
        own = {"PREFECT_RESILIENCE_STORE_URL": f"sqlite:///{folder}/resilience.db", "EXAMPLE_FOLDER": folder}
        command = [sys.executable, "-m", module, "run", *words]
        try:
            return subprocess.run(command, env=settings | os.environ | own, cwd=HERE, check=False).returncode
        except KeyboardInterrupt:
            return 130


def apart(module: str, work: Callable[[], None]) -> None:
    """The example's `main`: run `work` in a process of its own, and exit with its exit code."""
    if sys.argv[1:] == ["run"]:
        work()
    else:
        sys.exit(run_apart(module))
