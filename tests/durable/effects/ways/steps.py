"""What a receiver does with one request: a script is a list of these, and after its end all is fine."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Literal

TAKEN_BY_DEFAULT = {500: True, 502: True}
"""Whether a message was taken before such an answer. Above 400 it usually was not; a server that fails may
have done its work before."""


@dataclass(frozen=True)
class Refused:
    """Nobody listens: the connection is refused."""


@dataclass(frozen=True)
class Cut:
    """The connection ends without an answer: at once, within the request, or after the message was taken."""

    when: Literal["accept", "headers", "taken"]


@dataclass(frozen=True)
class Answer:
    """A status. `taken`: whether the message was taken; None: what the status usually means."""

    status: int = 200
    taken: bool | None = None
    headers: tuple[tuple[str, str], ...] = ()

    @property
    def takes(self) -> bool:
        if self.taken is not None:
            return self.taken
        return self.status < 400 or TAKEN_BY_DEFAULT.get(self.status, False)


@dataclass(frozen=True)
class Hold:
    """Nothing is said until the run lets it. The message is taken before the wait, or after it."""

    taken: Literal["before", "after"]
    then: Answer = field(default_factory=Answer)


@dataclass(frozen=True)
class At:
    """A mail server's word at a stage of the dialogue; 0: the connection ends there instead."""

    stage: str
    says: int


@dataclass(frozen=True)
class Busy:
    """Somebody else holds the lock of the database."""


Step = Refused | Cut | Answer | Hold | At | Busy
FINE = Answer()


NEXT, DEAD = "{next}", "{dead}"
"""Where a redirect leads: to another page of the receiver, or to where nobody listens."""


def redirect(status: int, to: str) -> Answer:
    """303: the message was taken, and its page is elsewhere. 307: it is to be sent there instead."""
    return Answer(status, taken=status == 303, headers=(("Location", to),))


def located(step: Step, next_page: str, dead: str) -> Step:
    """The step with real addresses in its headers."""
    if not isinstance(step, Answer):
        return step
    known = {NEXT: next_page, DEAD: dead}
    return replace(step, headers=tuple((name, known.get(value, value)) for name, value in step.headers))
