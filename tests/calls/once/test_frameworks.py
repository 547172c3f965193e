"""The examples of `flows/once`, each killed at three points and begun again: the bank gets one transfer.

`make agents` makes an environment with all the frameworks, and sets ONCE_PYTHON. Elsewhere two programs run.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from flows.llm_dialects import openai_message
from prefect_resilience.testing.services import ReceivedRequest, Reply, ScriptedService

pytestmark = pytest.mark.long

ROOT = Path(__file__).parents[3]
PYTHON = os.environ.get("ONCE_PYTHON", sys.executable)
PROGRAMS = ["plain_loop", "pydantic_agent"]
if "ONCE_PYTHON" in os.environ:
    PROGRAMS += ["langgraph_agent", "openai_agent", "mcp_agent"]
POINTS = ("the model is asked", "the bank got the transfer", "the model is asked with the result")


# LangGraph on a slow disk: the program may go on before its steps are saved.
ON_A_SLOW_DISK = """
import runpy, sys, time
from langgraph.checkpoint.sqlite import SqliteSaver
put = SqliteSaver.put
def put_late(self, config, checkpoint, metadata, versions):
    time.sleep(metadata["step"] >= 0 and 0.5)
    return put(self, config, checkpoint, metadata, versions)
SqliteSaver.put = put_late
runpy.run_module(sys.argv.pop(1), run_name="__main__")
"""


class World:
    """A scripted model and a bank on loopback. The program is killed when the point is reached, once."""

    def __init__(self, point: str) -> None:
        self.transfers: dict[str, str] = {}
        self.calls = 0
        self.point: str | None = point
        self.program: Any = None

    def run(self, *command: str, **options: Any) -> tuple[int, str, str]:
        pipes: dict[str, Any] = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE, "text": True}
        self.program = subprocess.Popen(command, start_new_session=True, **pipes, **options)
        output, errors = self.program.communicate(timeout=100)
        return self.program.returncode, output.strip(), errors

    def reach(self, point: str) -> None:
        if self.point == point:
            self.point = None
            os.killpg(self.program.pid, signal.SIGKILL)
            self.program.wait()

    def answer(self, request: ReceivedRequest, _: Any) -> Reply:
        if request.method == "GET":
            receipt = self.transfers.get(request.path.rpartition("/")[2].replace("%3A", ":"))
            return Reply(404) if receipt is None else Reply(body={"receipt": receipt})
        body = json.loads(request.body)
        if request.path.endswith("/chat/completions"):
            return Reply(headers={"Content-Type": "application/json"}, body=self.complete(body["messages"]))
        assert (body["to"], body["amount"]) == ("bob", 50)
        receipt = f"receipt-{len(self.transfers) + 1}"
        self.transfers[body["key"] if body["key"] not in self.transfers else receipt] = receipt
        self.reach(POINTS[1])
        return Reply(body={"receipt": receipt})

    def complete(self, messages: list[Any]) -> Any:
        results = [message["content"] for message in messages if message["role"] == "tool"]
        self.reach(POINTS[2] if results else POINTS[0])
        self.calls += 1
        answer = openai_message(results[-1] if results else "transfer")
        if not results:
            function = {"name": "transfer", "arguments": '{"to": "bob", "amount": 50}'}
            call = {"id": f"call-{self.calls}", "type": "function", "function": function}
            answer["choices"][0]["message"] |= {"content": None, "tool_calls": [call]}
        return answer


@pytest.mark.parametrize("point", POINTS)
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_killed_agent_that_is_begun_again_transfers_once(program, point, tmp_path, store):
    world = World(point)
    own = {name: value for name, value in os.environ.items() if not name.startswith(("PREFECT_", "COV_"))}
    with ScriptedService() as service:
        service.watch(world.answer)
        own |= {"MODEL_URL": f"{service.url}/v1", "BANK_URL": service.url, "PYTHONPATH": str(ROOT)}
        own |= {"PREFECT_HOME": str(tmp_path), "PREFECT_RESILIENCE_STORE_URL": store}
        begin = ["-c", ON_A_SLOW_DISK] if program == "langgraph_agent" else ["-m"]
        command = [PYTHON, *begin, f"flows.once.{program}", "turn-17"]
        first, second = (world.run(*command, cwd=tmp_path, env=own) for _ in range(2))
    assert first[0] == -signal.SIGKILL, first
    assert second[:2] == (0, "receipt-1"), second
    assert list(world.transfers.values()) == ["receipt-1"]
