"""`prefect-resilience limits list`: the token limits and the spending caps of a fleet, and their rows."""

from __future__ import annotations

from typing import Literal

from cyclopts import App
from pydantic import BaseModel

from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.guards.circuits.registry import StoreReference, read_documents
from prefect_resilience.guards.limits import spend, tokens
from prefect_resilience.operations.cli import look
from prefect_resilience.operations.cli.options import ANSWERING, Answering


class LimitRow(BaseModel, frozen=True):
    """A token limit or a cap. `used` are the tokens of all calls, or the money spent."""

    name: str
    kind: Literal["tokens", "USD"]
    per: str
    allowed: float
    used: float
    reserved: float = 0.0
    room: str


COLUMNS: look.Columns = {"limit": "name"} | {name: name for name in [*LimitRow.model_fields][1:]}


def read_limits(store: StoreReference = None) -> list[LimitRow]:
    """Every limit in the store; those without room come first. Raises StoreUnavailable."""
    buckets, now = read_documents(tokens.PREFIX, store)
    caps, _ = read_documents(spend.PREFIX, store)
    rows = [
        LimitRow(
            name=bucket["name"],
            kind="tokens",
            per="minute",
            allowed=bucket["per_minute"],
            used=bucket["used"],
            room=f"in {wait:.1f} s" if (wait := tokens.wait_of(bucket, now)) else "now",
        )
        for bucket in buckets.values()
    ]
    rows += [
        LimitRow(
            name=cap["name"] or cap["scope"],
            kind="USD",
            per=f"{cap['per']} {cap['scope']}",
            allowed=cap["usd"],
            used=round(cap["spent"], 6),
            reserved=round(sum(cap["reserved"].values()), 6),
            room="reached" if cap["reached"] else "now",
        )
        for cap in caps.values()
    ]
    return sorted(rows, key=lambda row: (row.room == "now", row.name, row.per))


app: App = App(name="limits", version_flags=[])


@app.command(name="list")
def list_limits(*, how: Answering = ANSWERING) -> int:
    """Show the token limits and the spending caps; those without room come first.

    Example: prefect-resilience limits list
    """
    with how.at_store(circuits=True) as url:
        limits = read_limits(url)
    says = f"There are no token limits and no caps in {redact(url)} yet: one is stored at its first call."
    return how.answer(limits, look.table(COLUMNS, limits) if limits else says)
