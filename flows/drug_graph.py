"""A small knowledge graph about drugs, in SQLite, and the HTTP service in front of it, which fails on demand.

    GET /graph?query=aspirin interactions    what the graph knows of the first drug in the question
    GET /stats                               how often it was asked, and which codes it answered with
    PUT /mood {"failing": 2}                 answer the next 2 questions with 503 (-1: all of them)
    PUT /mood {"unreviewed": true}           also answer from unreviewed claims

Try it alone: `python -m flows.drug_graph`, then `curl` the address that it prints.
"""

from __future__ import annotations

import csv
import re
import sqlite3
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.routing import Route

from flows.serving import running

DATA = Path(__file__).parent / "data"
PORT = 8765
ALWAYS = -1

SCHEMA = """
CREATE TABLE drugs (name TEXT PRIMARY KEY, class TEXT NOT NULL, fact TEXT NOT NULL);
CREATE TABLE claims (
    drug_a TEXT NOT NULL, drug_b TEXT NOT NULL, severity TEXT NOT NULL, evidence TEXT NOT NULL,
    confidence REAL NOT NULL CHECK (confidence BETWEEN 0 AND 1), reviewed INTEGER NOT NULL,
    effect TEXT NOT NULL, PRIMARY KEY (drug_a, drug_b)
);
"""
# An interaction has two ends, and may be asked for from either
CLAIMS_ABOUT = """
SELECT CASE drug_a WHEN :drug THEN drug_b ELSE drug_a END AS drug, severity, evidence, confidence, effect
FROM claims WHERE :drug IN (drug_a, drug_b) AND (reviewed OR :unreviewed) ORDER BY confidence DESC, drug
"""


def build_graph() -> sqlite3.Connection:
    """The graph in memory, for the service's thread alone to read."""
    graph = sqlite3.connect(":memory:", check_same_thread=False)
    graph.row_factory = sqlite3.Row
    graph.executescript(SCHEMA)
    graph.executemany("INSERT INTO drugs VALUES (:drug, :class, :fact)", _rows("drug_facts.csv"))
    graph.executemany(
        "INSERT INTO claims VALUES "
        "(:drug_a, :drug_b, :severity, :evidence, :confidence, :reviewed = 'yes', :effect)",
        _rows("drug_claims.csv"),
    )
    return graph


def ask_graph(graph: sqlite3.Connection, query: str, unreviewed: bool = False) -> dict[str, Any] | None:
    """What is known of the first drug in the question; None when the graph knows none of its words.

    An answer is as sure as the weakest claim in it.
    """
    known = {row["name"]: row for row in graph.execute("SELECT * FROM drugs")}
    drug = next((known[word] for word in re.findall(r"\w+", query.lower()) if word in known), None)
    if drug is None:
        return None
    asked = {"drug": drug["name"], "unreviewed": unreviewed}
    claims = [dict(row) for row in graph.execute(CLAIMS_ABOUT, asked)]
    told = "; ".join(f"with {claim['drug']} ({claim['severity']}): {claim['effect']}" for claim in claims)
    return {
        "drug": drug["name"],
        "text": f"{drug['name'].capitalize()}, {drug['class']}. {drug['fact']}. It interacts {told}.",
        "interactions": claims,
        "confidence": min((claim["confidence"] for claim in claims), default=0.0),
    }


class GraphService:
    """The service's memory: the graph, what it is told to do, and the codes of its answers."""

    def __init__(self, failing: int = 0, unreviewed: bool = False) -> None:
        self.graph = build_graph()
        self.failing = failing
        self.unreviewed = unreviewed
        self.given: list[int] = []

    def answer(self, code: int, body: dict[str, Any]) -> JSONResponse:
        self.given.append(code)
        return JSONResponse(body, code)

    async def ask(self, request: Request) -> JSONResponse:
        if self.failing:
            self.failing -= self.failing > 0
            return self.answer(503, {"error": "the graph is down for the moment"})
        found = ask_graph(self.graph, request.query_params.get("query", ""), self.unreviewed)
        if found is None:
            return self.answer(404, {"error": "the graph knows no drug of this question"})
        return self.answer(200, found)

    async def stats(self, request: Request) -> JSONResponse:
        return JSONResponse({"asked": len(self.given), "answered": self.given})

    async def mood(self, request: Request) -> JSONResponse:
        wanted = await request.json()
        self.failing = int(wanted.get("failing", self.failing))
        self.unreviewed = bool(wanted.get("unreviewed", self.unreviewed))
        return JSONResponse({"failing": self.failing, "unreviewed": self.unreviewed})

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/graph", self.ask),
                Route("/stats", self.stats),
                Route("/mood", self.mood, methods=["PUT"]),
            ]
        )


def _rows(name: str) -> list[dict[str, str]]:
    with (DATA / name).open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def main() -> None:
    with running(GraphService(), PORT) as address:
        print(f"{address}/graph?query=aspirin+interactions\n{address}/stats\nCtrl-C ends it.")
        with suppress(KeyboardInterrupt):
            threading.Event().wait()


if __name__ == "__main__":
    main()
