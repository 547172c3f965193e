"""The review queue: what a flow run cannot decide waits here, in SQLite, for a person."""

from __future__ import annotations

import os
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from tempfile import gettempdir

from prefect.runtime import flow_run

from prefect_resilience import Plan

SCHEMA = """
CREATE TABLE IF NOT EXISTS reviews (
    id INTEGER PRIMARY KEY, asked_at TEXT NOT NULL, flow_run TEXT NOT NULL,
    question TEXT NOT NULL, why TEXT NOT NULL
)
"""


ADD = "INSERT INTO reviews (asked_at, flow_run, question, why) VALUES (?, ?, ?, ?)"


@contextmanager
def queue() -> Iterator[sqlite3.Connection]:
    """The queue at DRUG_REVIEWS, made where there is none yet."""
    path = Path(os.environ.get("DRUG_REVIEWS") or Path(gettempdir()) / "drug_reviews.db")
    connection = sqlite3.connect(path, timeout=30)
    try:
        with connection:
            connection.execute(SCHEMA)
            yield connection
    finally:
        connection.close()


def ask_a_person(why: str) -> int:
    """Write down what was asked in this flow run, and why a person must answer; the number of the review."""
    now = datetime.now(UTC).isoformat(timespec="seconds")
    row = (now, flow_run.get_name() or "", question(), why)
    with queue() as reviews:
        added = reviews.execute(
            "INSERT INTO reviews (asked_at, flow_run, question, why) VALUES (?, ?, ?, ?)", row
        )
        return added.lastrowid or 0


def waiting() -> list[tuple[int, str, str, str]]:
    """Number, flow run, question and reason of each review, the oldest first."""
    with queue() as reviews:
        return reviews.execute("SELECT id, flow_run, question, why FROM reviews ORDER BY id").fetchall()


def question() -> str:
    """What this flow run is about: its plan's intent, else what its first node is asked."""
    source = flow_run.get_parameters().get("plan") or {}
    plan = Plan.from_file(source) if isinstance(source, str | Path) else Plan.model_validate(source)
    asked = [text for node in plan.tasks for text in node.input.values() if isinstance(text, str)]
    return plan.intent or next(iter(asked), plan.name)
