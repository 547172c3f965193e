"""What the command line and the dashboard show of a dead letter: its call, and the error that it shares."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, cast

from prefect_resilience.durable.letters.codec import KIND, LEFT_OUT
from prefect_resilience.durable.letters.model import DeadLetter
from prefect_resilience.errors.secrets.redact import redact, redact_data

OPEN = ("waiting", "in_doubt", "replaying")
VARYING = re.compile(r"""https?://\S+|'[^']*'|"[^"]*"|\b\w*\d[\w.:-]*""")
"""Parts of an error that differ from call to call: addresses, quoted names, ids, numbers and times."""
LONGEST_CALL = 300
CALLS_SHOWN = 5


def plain(encoded: Any) -> Any:
    """A value of a letter's JSON as plain data. No class is imported."""
    if isinstance(encoded, list):
        return [plain(item) for item in cast("list[Any]", encoded)]
    if not isinstance(encoded, dict):
        return encoded
    members = cast("dict[str, Any]", encoded)
    kind = members.get(KIND)
    if kind is None:
        return {name: plain(member) for name, member in members.items()}
    if kind == LEFT_OUT:
        return f"<left out: {members['why']}>"
    for part in ("fields", "value", "name"):
        if part in members:
            return plain(members[part])
    return None


def argument_text(name: str, encoded: Any, most: int) -> str:
    """A parameter and its value as JSON, without secrets and without the fields that the codec adds."""
    masked = redact_data({name: plain(encoded)})[name]
    text = json.dumps(masked, ensure_ascii=True)
    return f"{name} = {text if len(text) <= most else f'{text[:most]}... ({len(text):,} characters)'}"


@lru_cache(maxsize=2_000)
def call_text(letter: DeadLetter) -> str:
    """The arguments on one line. Cached: they never change, and each is read from the store."""
    arguments = letter.contents.parameters.items()
    text = ", ".join(argument_text(name, value, LONGEST_CALL // 3) for name, value in arguments)
    return text if len(text) <= LONGEST_CALL else f"{text[:LONGEST_CALL]}…"


def error_kind(letter: DeadLetter) -> str:
    """The error without what differs from call to call. The code stays as it is."""
    return f"{letter.code} {letter.category} {VARYING.sub('…', letter.message)}"[:LONGEST_CALL]


@dataclass
class LetterGroup:
    """The open letters of one task that failed with one kind of error; `latest`: the newest ones."""

    name: str
    kind: str
    states: dict[str, int] = field(default_factory=lambda: dict.fromkeys(OPEN, 0))
    latest: list[DeadLetter] = field(default_factory=list[DeadLetter])

    def add(self, letter: DeadLetter) -> None:
        self.states[letter.status] += 1
        if len(self.latest) < CALLS_SHOWN:
            self.latest.append(letter)

    @property
    def row(self) -> dict[str, Any]:
        """The group as JSON."""
        newest = self.latest[0]
        return {
            "name": self.name,
            "kind": self.kind,
            **self.states,
            "newest": newest.created_at.timestamp(),
            "error": redact(newest.summary())[:LONGEST_CALL],
            "calls": [call_row(letter) for letter in self.latest],
        }


def call_row(letter: DeadLetter) -> dict[str, Any]:
    return {
        "id": letter.id,
        "status": letter.status,
        "at": letter.created_at.timestamp(),
        "attempts": letter.attempts,
        "run": letter.flow_run_id,
        "call": call_text(letter),
    }


def grouped(letters: Iterable[DeadLetter]) -> list[LetterGroup]:
    """The open letters by task and kind of error: groups with a letter in doubt first, then the largest."""
    groups: dict[tuple[str, str], LetterGroup] = {}
    for letter in letters:
        if letter.status in OPEN:
            kind = error_kind(letter)
            groups.setdefault((letter.name, kind), LetterGroup(letter.name, kind)).add(letter)
    return sorted(
        groups.values(), key=lambda one: (not one.states["in_doubt"], -sum(one.states.values()), one.name)
    )
