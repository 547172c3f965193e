"""Two providers of drug interactions on loopback: a primary that fails by a script, and a second one.

A real HTTP service. The pair and the number of earlier requests for it decide how the primary answers, so
that every run is the same:

    GET /primary/interactions?a=..&b=..      follows its script, then works
    GET /second/interactions?a=..&b=..       always works
    GET /stats                               every response so far, by provider and pair

To try it alone, run `python -m flows.bad_day_service` and `curl` one of the URLs that it prints.
"""

from __future__ import annotations

import asyncio
import csv
import sys
import threading
from collections import defaultdict
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from flows.serving import running

TABLE = Path(__file__).parent / "data" / "drug_interactions.csv"
SLOW_SECONDS = 4.0
RETRY_AFTER = "1"

Pair = tuple[str, str]

# How the primary answers the first request for a pair, the second one, ...
# After the last word it works; "outage" does not end.
THE_DAY: dict[Pair, list[str]] = {
    ("digoxin", "amiodarone"): ["503", "503"],
    ("lithium", "ibuprofen"): ["429"],
    ("clopidogrel", "omeprazole"): ["slow"],
    ("spironolactone", "lisinopril"): ["dropped"],
    ("phenelzine", "sertraline"): ["400", "400", "400", "400"],
    ("tizanidine", "ciprofloxacin"): ["outage"],
    ("theophylline", "ciprofloxacin"): ["outage"],
    ("cyclosporine", "rifampin"): ["outage"],
    ("ethinyl estradiol", "rifampin"): ["outage"],
    ("alprazolam", "ketoconazole"): ["outage"],
    ("oxycodone", "alprazolam"): ["outage"],
    ("azathioprine", "allopurinol"): ["outage"],
    ("levothyroxine", "calcium carbonate"): ["outage"],
    ("colchicine", "clarithromycin"): ["outage"],
}


def read_table(path: Path = TABLE) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


class Dropped(Response):
    """Announces 1,000 bytes, sends a few, and stops: uvicorn then closes the connection."""

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        headers = [(b"content-type", b"application/json"), (b"content-length", b"1000")]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        await send({"type": "http.response.body", "body": b'{"severity": "ma', "more_body": True})


class BadDay:
    """The table that the service serves, its script, and every response so far."""

    def __init__(self, script: Mapping[Pair, list[str]] = THE_DAY) -> None:
        self.known = {(row["drug_a"], row["drug_b"]): row for row in read_table()}
        self.script = script
        self.given: dict[str, dict[Pair, list[str]]] = {
            "primary": defaultdict(list),
            "second": defaultdict(list),
        }

    def next_word(self, pair: Pair) -> str:
        words = self.script.get(pair, [])
        if words == ["outage"]:
            return "503"
        asked = len(self.given["primary"][pair])
        return words[asked] if asked < len(words) else "200"

    async def primary(self, request: Request) -> Response:
        pair = pair_of(request)
        word = self.next_word(pair)
        self.given["primary"][pair].append(word)
        if word == "503":
            return JSONResponse({"error": "the primary is down"}, 503)
        if word == "429":
            return JSONResponse({"error": "too many requests"}, 429, headers={"Retry-After": RETRY_AFTER})
        if word == "400":
            return JSONResponse({"error": "unknown drug name"}, 400)
        if word == "dropped":
            return Dropped()
        if word == "slow":
            await asyncio.sleep(SLOW_SECONDS)
        return self.answer("primary", pair)

    async def second(self, request: Request) -> Response:
        pair = pair_of(request)
        self.given["second"][pair].append("200")
        return self.answer("second", pair)

    def answer(self, provider: str, pair: Pair) -> Response:
        row = self.known.get(pair)
        if row is None:
            return JSONResponse({"error": "no interaction is known for this pair"}, 404)
        return JSONResponse({**row, "provider": provider})

    async def stats(self, request: Request) -> Response:
        return JSONResponse(
            {
                provider: {" + ".join(pair): words for pair, words in pairs.items()}
                for provider, pairs in self.given.items()
            }
        )

    def app(self) -> Starlette:
        return Starlette(
            routes=[
                Route("/primary/interactions", self.primary),
                Route("/second/interactions", self.second),
                Route("/stats", self.stats),
            ]
        )


def pair_of(request: Request) -> Pair:
    return request.query_params.get("a", ""), request.query_params.get("b", "")


def main() -> None:
    port = int(sys.argv[1]) if sys.argv[1:] else 0
    with running(BadDay(), port) as address, suppress(KeyboardInterrupt):
        print(f"{address}/primary/interactions?a=digoxin&b=amiodarone")
        print(f"{address}/second/interactions?a=digoxin&b=amiodarone")
        print(f"{address}/stats\nPress Ctrl-C to stop.")
        threading.Event().wait()


if __name__ == "__main__":
    main()
