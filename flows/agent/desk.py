"""The other side of the example: the outbox, the model, and the team lead who answers the approvals."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from prefect import get_client
from prefect.client.orchestration import SyncPrefectClient
from prefect.client.schemas.filters import FlowRunFilter, FlowRunFilterState, FlowRunFilterStateType
from prefect.client.schemas.objects import FlowRun, StateType
from rich.console import Console
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

Decide = Callable[[str], dict[str, Any]]
PAUSED = FlowRunFilter(state=FlowRunFilterState(type=FlowRunFilterStateType(any_=[StateType.PAUSED])))


def model(prompt: str) -> str:
    """The language model: it names the amount of a refund only when the comment asks for it."""
    amount = "29 EUR" if "amount" in prompt.partition("comment: ")[2] else "your money"
    return f"Dear customer, we send {amount} back within three days."


class Outbox:
    """Receives replies under their `Idempotency-Key`."""

    def __init__(self) -> None:
        self.replies: list[dict[str, Any]] = []

    async def receive(self, request: Request) -> Response:
        received = {"id": f"reply-{len(self.replies) + 1}", "key": request.headers["Idempotency-Key"]}
        self.replies.append({**received, **await request.json()})
        return JSONResponse(received)

    async def find(self, request: Request) -> Response:
        found = [one for one in self.replies if one["key"] == request.query_params["key"]]
        return JSONResponse(found[0] if found else None)

    def app(self) -> Starlette:
        return Starlette(
            routes=[Route("/replies", self.receive, methods=["POST"]), Route("/replies", self.find)]
        )


def by_script(*answers: dict[str, Any]) -> Decide:
    """A team lead who gives these answers, in order."""
    left = iter(answers)
    return lambda question: next(left)


def by_keyboard(question: str) -> dict[str, Any]:
    """You are the team lead."""
    approved = input("Approve? [y/N] ").strip().lower() in ("y", "yes")
    comment = "" if approved else input("Comment for the writer: ").strip()
    return {"approved": approved, "comment": comment or None}


@contextmanager
def team_lead(decide: Decide, console: Console) -> Iterator[None]:
    """Answer each paused flow run as the form in the Prefect UI does."""
    over = threading.Event()

    def work() -> None:
        answered: set[Any] = set()
        with get_client(sync_client=True) as client:
            while not over.wait(0.2):
                for run in client.read_flow_runs(flow_run_filter=PAUSED):
                    if run.state is not None and run.state.id not in answered:
                        answered.add(run.state.id)
                        _answer(client, run, decide, console)

    thread = threading.Thread(target=work, name="team lead", daemon=True)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join(timeout=5)


def _answer(client: SyncPrefectClient, run: FlowRun, decide: Decide, console: Console) -> None:
    assert run.state is not None
    key = (run.state.state_details.run_input_keyset or {})["description"]
    while not (form := client.filter_flow_run_input(run.id, key, 1, set())):
        time.sleep(0.1)  # it is stored right after the pause
    question = form[0].decoded_value
    console.print(f"[bold]The flow run is paused.[/] {question}\n", soft_wrap=True)
    decision = decide(question)
    word = "[green]approved[/]" if decision["approved"] else f"[red]rejected[/]: {decision['comment']}"
    console.print(f"Team lead: {word}\n", soft_wrap=True)
    client.resume_flow_run(run.id, run_input=decision)
