"""The outcomes as a Markdown table, and as the page of the documentation that has it."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from tests.durable.effects.ways.running import Outcome
from tests.durable.effects.ways.way import COMBINATIONS, Way

PAGE = Path(__file__).parents[4] / "docs" / "effects_ways.md"
COMMAND = "python -m tests.durable.effects.ways --write"
COLUMNS = ("client", "function", "fault", *(one.name for one in COMBINATIONS), "why")

HEAD = f"""# Every way to send

Each row is one way in which an external effect can fail. The fault happens on the wire at the first attempt,
in front of a real receiver on loopback; a later attempt, if one is made, succeeds. In every row the receiver
takes a message at most once, and if the task succeeds, exactly once. The last rows are ordinary functions
that change their argument, send something else, return a state or an awaitable, or outlast their lease.

[Effects](effects.md) explains the terms. `{COMMAND}` tried {{count}} ways in {{cells}}
runs and wrote this page.

| column | meaning |
|---|---|
| client, function, fault | the client, what the function does, and the fault of the first attempt |
| neither, verify, proof, proof and verify | what the task has: `verify=`, proof, both, or none of them |
| why | why there is, or is no, proof that nothing was taken |

*Proof* is the hook `send_idempotency_key` for clients built on httpx, and `Effect(one_request=True)` for the
others. A dash means that the function makes several requests, so that promise cannot be made.

A cell has how often the receiver took the message (`1+0`: two messages), and how the task ended:

| cell | meaning |
|---|---|
| `succeeded` | the first attempt returned a result |
| `retried, succeeded` | the first attempt was proven not sent, and a retry succeeded |
| `verify asked` | `verify` settled the first attempt; the task succeeded |
| `InDoubt` | the outcome is unknown: nothing was sent again, and a person decides |
| `rejected` | a `ConfigurationError` before anything was sent |
| `replayed late result` | the call ended after its deadline; its result was recorded and returned |

"""


def told(outcomes: Sequence[Outcome], seconds: float) -> str:
    """The table, what is wrong with it, and the totals."""
    wrong = [outcome for outcome in outcomes if outcome.problems]
    lines = [table(outcomes), ""]
    for outcome in wrong:
        lines.append(f"WRONG {outcome.way.name} [{outcome.given.name}]: {'; '.join(outcome.problems)}")
        if outcome.error:
            lines.append(f"      {outcome.error[:160]}")
    ways = len({outcome.way for outcome in outcomes})
    lines.append(f"{ways} ways, {len(outcomes)} runs, {len(wrong)} wrong, {seconds:.0f} s")
    return "\n".join(lines)


def page(outcomes: Sequence[Outcome]) -> str:
    ways = len({outcome.way for outcome in outcomes})
    return HEAD.format(count=ways, cells=len(outcomes)) + table(outcomes) + "\n"


def table(outcomes: Sequence[Outcome]) -> str:
    found: dict[Way, dict[str, Outcome]] = {}
    for outcome in outcomes:
        found.setdefault(outcome.way, {})[outcome.given.name] = outcome
    rows = [_row(COLUMNS), _row(["---"] * len(COLUMNS))]
    for way, of_way in found.items():
        cells = [_cell(of_way.get(one.name)) for one in COMBINATIONS]
        rows.append(begins(way) + _row([*cells, way.why])[2:])
    return "\n".join(rows)


def begins(way: Way) -> str:
    """The first columns of its row."""
    return f"| {way.client} | {way.shape} | {way.fault} | "


def _cell(outcome: Outcome | None) -> str:
    if outcome is None:
        return "-"
    return f"{outcome.taken}: {outcome.ending}" + (" **(wrong)**" if outcome.problems else "")


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
