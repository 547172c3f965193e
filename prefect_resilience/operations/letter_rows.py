"""Dead letters as rows: what the command line and the dashboard show of each, and of a common error."""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache
from itertools import islice
from typing import Any, cast

from rich.console import RenderableType

from prefect_resilience.base.text import plural
from prefect_resilience.durable.letters.codec import KIND, LEFT_OUT
from prefect_resilience.durable.letters.model import DeadLetter
from prefect_resilience.errors.secrets.redact import redact, redact_data
from prefect_resilience.operations.cli import look
from prefect_resilience.operations.cli.look import safe

MEANINGS = {
    "waiting": "not replayed yet",
    "replaying": "a replay is running",
    "in_doubt": "a replay was interrupted; check its outcome at the receiver, then run `replay ID --force`",
    "replayed": "its call was replayed successfully",
    "settled": "its call succeeded in a later pass of its flow run; it needs no replay",
}
OPEN = ("waiting", "in_doubt", "replaying")
COUNTED = 10_000
"""So many letters are counted for a screen; then it says that there are more."""
VARYING = re.compile(r"""https?://\S+|'[^']*'|"[^"]*"|\b\w*\d[\w.:-]*""")
"""Parts of an error that differ from call to call: addresses, quoted names, ids, numbers and times."""
LONGEST_CALL, LONGEST_VALUE = 300, 2_000
CALLS_SHOWN, GROUPS_SHOWN = 5, 50


def plain(encoded: Any) -> Any:
    """A value of a letter's JSON as plain data. No class is imported."""
    if isinstance(encoded, list):
        return [plain(item) for item in cast("list[Any]", encoded)]
    if not isinstance(encoded, dict):
        return encoded
    members = cast("dict[str, Any]", encoded)
    if KIND not in members:
        return {name: plain(member) for name, member in members.items()}
    if members[KIND] == LEFT_OUT:
        return f"<left out: {members['why']}>"
    return next((plain(members[part]) for part in ("fields", "value", "name") if part in members), None)


def argument_texts(letter: DeadLetter, most: int) -> Iterator[str]:
    """Each parameter and its value as JSON, without secrets and without the fields that the codec adds."""
    for name, encoded in letter.contents.parameters.items():
        text = json.dumps(redact_data({name: plain(encoded)})[name])
        yield f"{name} = {look.clip(text, most)}"


@lru_cache(maxsize=2_000)
def call_text(letter: DeadLetter) -> str:
    """The arguments on one line. Cached: they never change, and each is read from the store."""
    return look.clip(", ".join(argument_texts(letter, LONGEST_CALL // 3)), LONGEST_CALL)


def error_kind(letter: DeadLetter) -> str:
    """The error without what differs from call to call. The code stays as it is."""
    return f"{letter.code} {letter.category} {VARYING.sub('…', letter.message)}"[:LONGEST_CALL]


COLUMNS: look.Columns = {
    **{"status": "status", "id": "id", "task": "name", "created": "created_at"},
    "passes": lambda letter: max(letter.failures, len(letter.passes)),
    "error": lambda letter: safe(letter.summary()),
}
OUTCOMES: look.Columns = {
    "result": lambda outcome: look.state(outcome.result),
    **{"id": "id", "task": "name", "message": "message"},
}
"""The outcome of each letter of a replay."""


def counts_line(counts: Mapping[str, int], url: str, *, more: bool) -> str:
    """One line: the number of letters by status. `more`: there are others, which were not counted."""
    states = ", ".join(f"{counts[name]} {name.replace('_', ' ')}" for name in MEANINGS if counts.get(name))
    number = f"{'more than ' if more else ''}{plural(sum(counts.values()), 'dead letter')}"
    return f"{number}{': ' if states else ''}{states}, in {redact(url)}"


def card_of(letter: DeadLetter) -> Iterator[RenderableType]:
    """All facts about one letter, and what its status means."""
    trace = letter.error.stack_trace if letter.error is not None else None
    document = letter.model_dump(exclude={"key", "identity", "left_out"})
    yield look.card(
        {**document, "parameters": list(argument_texts(letter, LONGEST_VALUE)), "stack_trace": trace}
    )
    yield f"{letter.status.replace('_', ' ').capitalize()}: {MEANINGS[letter.status]}."


def page_rows(listed: Iterable[DeadLetter], most: int = COUNTED) -> tuple[dict[str, Any], dict[str, Any]]:
    """The rows of groups of open letters of one task with one kind of error, and the summary of all.

    Groups with a letter in doubt come first, then the largest. `listed`: letters, the newest first; `most` of
    them are counted. `more`: there are others.
    """
    letters = iter(listed)
    groups: dict[tuple[str, str], list[DeadLetter]] = {}
    for letter in islice(letters, most):
        if letter.status in OPEN:
            groups.setdefault((letter.name, error_kind(letter)), []).append(letter)
    more = next(letters, None) is not None
    counts = {key: Counter[str](letter.status for letter in members) for key, members in groups.items()}
    order = sorted(groups, key=lambda key: (not counts[key]["in_doubt"], -len(groups[key]), key[0]))
    rows = {
        f"{name}: {kind}": {
            **{"place": place, "name": name, "kind": kind, "more": more},
            **{state: counts[name, kind][state] for state in OPEN},
            "newest": groups[name, kind][0].created_at.timestamp(),
            "error": redact(groups[name, kind][0].summary())[:LONGEST_CALL],
            "calls": [_page_call(letter) for letter in groups[name, kind][:CALLS_SHOWN]],
        }
        for place, (name, kind) in enumerate(order[:GROUPS_SHOWN])
    }
    totals = {state: sum(count[state] for count in counts.values()) for state in OPEN}
    return rows, {**totals, "more": more, "groups": len(groups), "shown": len(rows)}


def _page_call(letter: DeadLetter) -> dict[str, Any]:
    return {
        **{"id": letter.id, "status": letter.status, "attempts": letter.attempts},
        **{"at": letter.created_at.timestamp(), "run": letter.flow_run_id, "call": call_text(letter)},
    }
