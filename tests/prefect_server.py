"""One Prefect server for all processes of a test session: the first that needs it starts it.

    python -m tests.prefect_server FOLDER PID

serves an API on a free port of the loopback, with a database in that folder, until the process PID has ended
(however it ended, so that no server is left behind). Its address is then in FOLDER/url.
"""

import fcntl
import os
import shutil
import signal
import socket
import sqlite3
import subprocess
import sys
import threading
import time
from contextlib import closing
from importlib.metadata import version
from pathlib import Path
from typing import Any

import httpx
import uvicorn

ROOT = Path(__file__).parents[1]
SECONDS = 120
# Prefect makes its tables in over a hundred migrations, in ten seconds: a new server begins with another's
NEW_DATABASE = ROOT / ".pytest_cache" / f"prefect-{version('prefect')}.db"


def shared_server(folder: Path, session: int) -> str:
    """The URL of the session's API. The lock makes the others wait for the one that starts it."""
    with (folder / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        url = folder / "url"
        return url.read_text() if url.exists() else start_server(folder, session)


def start_server(folder: Path, session: int) -> str:
    """The URL of a new API with a database in this folder, which answers."""
    database = folder / "prefect.db"
    if NEW_DATABASE.exists() and not database.exists():  # else it is started again
        shutil.copyfile(NEW_DATABASE, database)
    settings = {
        "PREFECT_SERVER_DATABASE_CONNECTION_URL": f"sqlite+aiosqlite:///{database}",
        "PREFECT_UI_ENABLED": "0",
        # As Prefect's own servers for tests have it
        "PREFECT__SERVER_EPHEMERAL": "1",
        "PREFECT__SERVER_FINAL": "1",
    }
    with (folder / "log").open("wb") as log:
        # A session of its own: Ctrl-C is for the tests, which still need the API while they end.
        process = subprocess.Popen(
            [sys.executable, "-m", "tests.prefect_server", str(folder), str(session)],
            env={**os.environ, **settings},
            cwd=ROOT,
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
    (folder / "pid").write_text(str(process.pid))
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline and process.poll() is None:
        if url := _answering(folder / "listening"):
            (folder / "url").write_text(url)
            _keep(database)
            return url
        time.sleep(0.05)
    process.kill()
    raise RuntimeError(f"The tests' Prefect server did not start: {(folder / 'log').read_text()[-2000:]}")


def _keep(database: Path) -> None:
    """Keep the tables of a server that has just started, for the next one."""
    if NEW_DATABASE.exists():
        return
    NEW_DATABASE.parent.mkdir(exist_ok=True)
    copy = NEW_DATABASE.with_suffix(f".{os.getpid()}")
    with closing(sqlite3.connect(database)) as source, closing(sqlite3.connect(copy)) as target:
        source.backup(target)
    copy.replace(NEW_DATABASE)


def _answering(listening: Path) -> str | None:
    """The URL that stands in this file, once there is an answer."""
    try:
        url = listening.read_text()
        return url if url and httpx.get(f"{url}/health").status_code == 200 else None
    except (FileNotFoundError, httpx.TransportError):
        return None


def end_server(folder: Path) -> None:
    """End the server of this folder, if one was started, and wait for its end."""
    try:
        pid = int((folder / "pid").read_text())
        os.kill(pid, signal.SIGKILL)  # its database is thrown away with it
    except (FileNotFoundError, ProcessLookupError):
        return
    deadline = time.monotonic() + 10
    while _is_alive(pid) and time.monotonic() < deadline:
        time.sleep(0.01)


def _is_alive(pid: int) -> bool:
    try:
        if os.waitpid(pid, os.WNOHANG)[0] == pid:
            return False
    except ChildProcessError:
        pass  # another process started it
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return True


def take_turns() -> None:
    """Let every transaction of this server wait for the one before it.

    SQLite refuses a transaction that has read and then writes behind another one: the server answers 503, at
    every second run of several workers. One that says at its beginning that it will write waits instead.
    """
    from prefect.server.database.configurations import AioSqliteConfiguration

    begin = AioSqliteConfiguration.begin_transaction

    def begin_to_write(self: Any, session: Any, with_for_update: bool = True) -> Any:
        return begin(self, session, with_for_update=True)

    AioSqliteConfiguration.begin_transaction = begin_to_write  # type: ignore[method-assign]


def main(folder: Path, session: int) -> None:
    from prefect.server.api.server import create_app

    take_turns()

    def end_with_the_session() -> None:
        while True:
            try:
                os.kill(session, 0)
            except ProcessLookupError:
                os._exit(0)
            time.sleep(1)

    threading.Thread(target=end_with_the_session, daemon=True).start()
    before = folder / "url"  # of a server that is started again
    port = int(before.read_text().rpartition(":")[2].partition("/")[0]) if before.exists() else 0
    listener = socket.create_server(("127.0.0.1", port))
    (folder / "listening").write_text(f"http://127.0.0.1:{listener.getsockname()[1]}/api")
    config = uvicorn.Config(create_app, factory=True, log_level="error", lifespan="on")
    uvicorn.Server(config).run(sockets=[listener])


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]))
