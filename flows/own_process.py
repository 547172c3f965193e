"""An example in a process of its own, whose settings leave nothing behind on this machine."""

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
    """`python -m module run *words`, with a store of its own, and where no API is configured one too.

    Gives the exit code. A folder that is gone afterwards is named by EXAMPLE_FOLDER.
    """
    with TemporaryDirectory(prefix="example-", ignore_cleanup_errors=True) as folder:
        settings = {
            # The examples say it shorter; the UI has all of the log
            "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL",
            "PREFECT_SERVER_EPHEMERAL_STARTUP_TIMEOUT_SECONDS": "90",
            "PREFECT_SERVER_ANALYTICS_ENABLED": "false",
        }
        if get_current_settings().api.url is None:
            settings["PREFECT_HOME"] = folder
            print("No Prefect API is configured, so an ephemeral one starts: some seconds ...", flush=True)
        # Circuits start closed, and batches empty, every time
        own = {"PREFECT_RESILIENCE_STORE_URL": f"sqlite:///{folder}/resilience.db", "EXAMPLE_FOLDER": folder}
        command = [sys.executable, "-m", module, "run", *words]
        try:
            return subprocess.run(command, env=settings | os.environ | own, cwd=HERE, check=False).returncode
        except KeyboardInterrupt:
            return 130


def apart(module: str, work: Callable[[], None]) -> None:
    """The example's `main`: `work` in a process of its own, which ends this one too."""
    if sys.argv[1:] == ["run"]:
        work()
    else:
        sys.exit(run_apart(module))
