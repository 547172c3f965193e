"""A weekly digest goes out by mail and to a notice board, and its process is killed in the middle, twice.

`python -m flows.send_digest` starts a real SMTP server and a real HTTP service, then the flow as a process
of its own, kills that (SIGKILL) while a post is on its way, and starts it again in the same batch, until it
ends. Watch for:
- the first kill comes when the board has the post and the flow does not know it: `verify` asks the board, and
  it is not posted again;
- the second comes when the board has lost the post: `verify` says so, and it is posted once more;
- what was done before is `Replayed`: no mail is sent twice, though mail has no `verify`. A mail that is cut
  off half-way would be left to a person: `InDoubt`, never guessed;
- at last the digest is withdrawn: `rollback` takes the posts back, the last one first. Mail has no
  compensation, stays, and is named.
"""

from __future__ import annotations

import smtplib
import sys
from collections import Counter
from email.message import EmailMessage
from typing import Any

import httpx
from prefect import flow
from rich.console import Console
from rich.table import Table

from flows.digest_processes import run_until_it_ends, shared_api
from flows.digest_receivers import receivers
from flows.own_process import run_apart
from prefect_resilience import (
    Done,
    Effect,
    NotDone,
    batch,
    idempotency_key,
    resilient_task,
    rollback,
    savepoint,
    send_idempotency_key,
)

DIGEST = {
    "ada@example.org": "interactions",
    "grace@example.org": "recalls",
    "rosalind@example.org": "trials",
    "tu@example.org": "approvals",
    "marie@example.org": "shortages",
}
"""Who reads what: each gets a mail, and the topic goes onto the board."""

MOMENTS = {2: "taken", 4: "lost"}
"""What happens to which of the posts that arrive; the flow is killed at each."""

CONSOLE = Console(width=100)
HOOKS: dict[str, list[Any]] = {"request": [send_idempotency_key]}

# --- the tasks -------------------------------------------------------------------------------------------


@resilient_task(effect=Effect(key="{batch_id}/mail/{reader}"))
def mail(reader: str, text: str, port: int) -> Done:
    message = EmailMessage()
    message["Message-ID"] = f"<{idempotency_key()}>"
    message["From"], message["To"], message["Subject"] = "digest@example.org", reader, "This week"
    message.set_content(text)
    with smtplib.SMTP("127.0.0.1", port, timeout=10) as server:
        server.send_message(message)
    return Done(None, external_id=message["Message-ID"])


def on_the_board(key: str, board: str) -> Done | NotDone:
    """What the board knows of a post whose sender died."""
    found = httpx.get(f"{board}/posts", params={"key": key}).json()
    return Done(found[0], external_id=found[0]["id"]) if found else NotDone()


def retract(external_id: str, board: str) -> None:
    httpx.delete(f"{board}/posts/{external_id}").raise_for_status()


@resilient_task(effect=Effect(key="{batch_id}/post/{topic}", verify=on_the_board, compensate=retract))
def post(topic: str, text: str, board: str) -> Done:
    with httpx.Client(event_hooks=HOOKS, timeout=60) as client:
        made = client.post(f"{board}/posts", json={"topic": topic, "text": text}).raise_for_status().json()
    return Done(made, external_id=made["id"])


# --- the flow --------------------------------------------------------------------------------------------


@flow(name="send-digest")
def send_digest(week: str, port: int, board: str) -> None:
    with batch(f"digest-{week}"):
        savepoint("nothing sent")
        for reader, topic in DIGEST.items():
            mail(reader, f"All about {topic}", port)
            post(topic, f"This week in {topic}", board)


# --- running it ------------------------------------------------------------------------------------------


def show(week: str) -> None:
    """Send a digest through processes that are killed, withdraw it, and print what the receivers got."""
    with shared_api(), receivers(MOMENTS) as (mailbox, board, addresses):
        kills = run_until_it_ends(
            [sys.executable, "-m", "flows.send_digest", "send", week, *addresses], board
        )
        CONSOLE.print(f"The flow was killed {kills} times, and has ended. Now the digest is withdrawn.")
        report = rollback(f"digest-{week}")
    mails = Counter(recipient for recipient, _ in mailbox.taken)
    posts = Counter(one["topic"] for one in board.posts)
    back = Counter(one["topic"] for one in board.posts if one["id"] in board.retracted)
    table = Table("receiver", "message", "taken", "taken back", title="What the receivers got")
    for reader in DIGEST:
        table.add_row("mail", reader, str(mails[reader]), "-")
    for topic in DIGEST.values():
        table.add_row("board", topic, str(posts[topic]), str(back[topic]))
    CONSOLE.print(table)
    CONSOLE.print(f"{report}; taken back in this order: {', '.join(board.retracted)}")


if __name__ == "__main__":
    match sys.argv[1:]:
        case ["send", week, port, board]:
            send_digest(week, int(port), board)
        case ["run"]:
            show("2026-47")
        case _:
            sys.exit(run_apart("flows.send_digest"))
