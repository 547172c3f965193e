"""Run the assistant on one ticket, with two providers on loopback.

python -m flows.agent               a scripted team lead answers
python -m flows.agent keyboard      you answer in the terminal
python -m flows.agent ui            you answer in the Prefect UI of the API that is configured
"""

from __future__ import annotations

import sys
from contextlib import nullcontext

from prefect.settings import get_current_settings
from rich.console import Console

from flows.agent.assistant import assistant
from flows.agent.desk import Outbox, by_keyboard, by_script, model, team_lead
from flows.llm_service import LLMService
from flows.own_process import run_apart
from flows.serving import running

REJECTED = {"approved": False, "comment": "name the amount"}
APPROVED = {"approved": True}


def main(who: str = "script") -> None:
    console, outbox = Console(width=100, highlight=False), Outbox()
    service = LLMService({"anthropic": ["529", "529", "529"]}, model=model)
    decide = by_keyboard if who == "keyboard" else by_script(REJECTED, APPROVED)
    lead = nullcontext() if who == "ui" else team_lead(decide, console)
    if who == "ui":
        console.print(f"Answer in the Prefect UI: {get_current_settings().ui_url}/runs", soft_wrap=True)
    with running(service) as llm, running(outbox) as address, lead:
        state = assistant(7, "Where is my refund?", llm, address, poll_interval=0.2, return_state=True)
    for provider, responses in service.given.items():
        console.print(f"{provider} answered: {', '.join(responses)}")
    result = f"Sent: {state.result()}" if state.is_completed() else f"Failed: {state.message}"
    console.print(f"{result}. Replies in the outbox: {len(outbox.replies)}")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["run", *words]:
            main(*words)
        case words:
            sys.exit(run_apart("flows.agent", *words))
