"""The examples of `flows/once`, each killed at three points and begun again: the bank gets one transfer.

The frameworks want an environment of their own: `make agents` makes it, and sets ONCE_PYTHON. Elsewhere those
run that are installed.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[3]
PYTHON = os.environ.get("ONCE_PYTHON", sys.executable)
NEEDS = {
    "plain_loop": "openai",
    "pydantic_agent": "pydantic_ai",
    "langgraph_agent": "langgraph",
    "openai_agent": "agents",
    "mcp_agent": "fastmcp",
}
FIND = "from importlib.util import find_spec; import sys; print(*filter(find_spec, sys.argv[1:]))"
FOUND = subprocess.run(
    [PYTHON, "-c", FIND, *NEEDS.values()], capture_output=True, text=True, check=True
).stdout
PROGRAMS = [program for program, module in NEEDS.items() if module in FOUND.split()]
POINTS = ("the model is asked", "the bank got the transfer", "the model is asked with the result")


class World:
    """A scripted model and a bank on loopback. `kill` is called when the point is reached, once."""

    def __init__(self, point: str, kill: Callable[[], None]) -> None:
        self.transfers: dict[str, str] = {}
        self.calls = 0
        self.point: str | None = point
        self.kill = kill

    def reach(self, point: str) -> None:
        if self.point == point:
            self.point = None
            self.kill()

    def answer(self, path: str, body: Any) -> tuple[int, Any]:
        if path.endswith("/chat/completions"):
            return 200, self.completion(body["messages"])
        if body is None:
            receipt = self.transfers.get(path.rpartition("/")[2].replace("%3A", ":"))
            return (404, {}) if receipt is None else (200, {"receipt": receipt})
        assert (body["to"], body["amount"]) == ("bob", 50)
        receipt = f"receipt-{len(self.transfers) + 1}"
        self.transfers[body["key"] if body["key"] not in self.transfers else receipt] = receipt
        self.reach(POINTS[1])
        return 200, {"receipt": receipt}

    def completion(self, messages: list[Any]) -> Any:
        results = [message["content"] for message in messages if message["role"] == "tool"]
        self.reach(POINTS[2] if results else POINTS[0])
        self.calls += 1
        message: dict[str, Any] = {"role": "assistant", "content": results[-1] if results else None}
        if not results:
            function = {"name": "transfer", "arguments": '{"to": "bob", "amount": 50}'}
            message["tool_calls"] = [{"id": f"call-{self.calls}", "type": "function", "function": function}]
        reason = "stop" if results else "tool_calls"
        choice = {"index": 0, "message": message, "finish_reason": reason}
        return {
            "id": "c",
            "object": "chat.completion",
            "created": 1,
            "model": "scripted",
            "choices": [choice],
        }


@pytest.fixture
def serve() -> Iterator[Callable[[World], str]]:
    servers: list[ThreadingHTTPServer] = []

    def start(world: World) -> str:
        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                length = int(self.headers.get("Content-Length") or 0)
                body = json.loads(self.rfile.read(length)) if length else None
                status, answer = world.answer(self.path, body)
                try:
                    self.send_response(status)
                    self.send_header("Content-Type", "application/json")
                    self.end_headers()
                    self.wfile.write(json.dumps(answer).encode())
                except OSError:
                    return  # the program was killed

            do_POST = do_GET

            def log_message(self, *_: object) -> None:
                pass

        servers.append(ThreadingHTTPServer(("127.0.0.1", 0), Handler))
        threading.Thread(target=servers[-1].serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{servers[-1].server_address[1]}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_killed_agent_that_is_begun_again_transfers_once(program, point, tmp_path, serve):
    running: list[subprocess.Popen[str]] = []

    def kill() -> None:
        os.killpg(running[-1].pid, signal.SIGKILL)
        running[-1].wait()

    world = World(point, kill)
    address = serve(world)
    own = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "COV_"))}
    own |= {"MODEL_URL": f"{address}/v1", "BANK_URL": address, "PYTHONPATH": str(ROOT)}
    own |= {"PREFECT_HOME": str(tmp_path), "PREFECT_RESILIENCE_STORE_URL": f"sqlite:///{tmp_path}/effects.db"}
    command = [PYTHON, "-m", f"flows.once.{program}", "turn-17"]
    outputs = []
    for _ in range(2):
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        running.append(subprocess.Popen(command, cwd=tmp_path, env=own, start_new_session=True, **pipes))
        outputs.append(running[-1].communicate(timeout=100))
    assert running[0].returncode == -signal.SIGKILL, outputs[0]
    assert running[1].returncode == 0, outputs[1]
    assert outputs[1][0].strip() == "receipt-1"
    assert list(world.transfers.values()) == ["receipt-1"]
