"""The error of a chain that only a person can help."""

from __future__ import annotations

from typing import ClassVar

from prefect_resilience.errors.exceptions import ResilienceError


class PersonNeeded(ResilienceError):
    """Every step of a chain failed, and the person who is its last one has not answered.

    `chain` and `person` are their names, `why` says what kept the person from answering. The first agent's
    error is its `__cause__`. It is not tried again: nothing changes until somebody does something.
    """

    error_category: ClassVar[str] = "unexpected"

    def __init__(self, chain: str, person: str, why: str) -> None:
        self.chain = chain
        self.person = person
        self.why = why
        super().__init__(f"every agent of {chain!r} failed, and {person!r} must take over: {why}")

    def __reduce__(self) -> tuple[type[PersonNeeded], tuple[str, str, str]]:
        return type(self), (self.chain, self.person, self.why)
