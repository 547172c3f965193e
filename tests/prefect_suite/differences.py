"""Two runs of one file compared, and the differences that are meant."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import NamedTuple

PAGE = Path(__file__).parents[2] / "docs" / "differences.md"
ROW = re.compile(r"^\| `(tests/[^`]+)` \| (.+?) \|$", re.MULTILINE)


class Outcome(NamedTuple):
    """What became of one test: "passed", "skipped" or "failed", and the error in one line."""

    outcome: str
    error: str = ""


@dataclass(frozen=True)
class Reason:
    """A row of the page: the tests that may differ, with `*` for any text, and why."""

    pattern: str
    why: str

    def covers(self, test: str) -> bool:
        return re.fullmatch(re.escape(self.pattern).replace(r"\*", ".*"), test) is not None


def read_reasons(page: Path) -> list[Reason]:
    return [Reason(pattern, why) for pattern, why in ROW.findall(page.read_text(encoding="utf-8"))]


@dataclass(frozen=True)
class Comparison:
    """How the tests of one file went, plain and with ours."""

    file: str
    tests: int = 0
    passed_plain: int = 0
    passed_ours: int = 0
    listed: Mapping[str, str] = field(default_factory=dict[str, str])
    """Differing tests, with the reason that the page gives."""
    unlisted: Mapping[str, str] = field(default_factory=dict[str, str])
    """Differing tests without a reason, with their error."""
    unsteady: Sequence[str] = ()
    names: frozenset[str] = frozenset()
    ran: bool = True

    @property
    def differing(self) -> list[str]:
        return [*self.listed, *self.unlisted]

    @property
    def numbers(self) -> tuple[int, ...]:
        differ = (len(self.listed), len(self.unlisted), len(self.unsteady))
        return (self.tests, self.passed_plain, self.passed_ours, *differ)

    def after(self, again: Mapping[str, Outcome]) -> Comparison:
        """The same, after the differing tests were run once more with ours: what passed is unsteady."""
        passed = {test for test, outcome in again.items() if outcome.outcome == "passed"}
        return replace(
            self,
            listed={test: why for test, why in self.listed.items() if test not in passed},
            unlisted={test: error for test, error in self.unlisted.items() if test not in passed},
            unsteady=[test for test in self.differing if test in passed],
        )

    @staticmethod
    def total(done: Sequence[Comparison]) -> Comparison:
        return Comparison(
            "all",
            sum(one.tests for one in done),
            sum(one.passed_plain for one in done),
            sum(one.passed_ours for one in done),
            {test: why for one in done for test, why in one.listed.items()},
            {test: error for one in done for test, error in one.unlisted.items()},
            [test for one in done for test in one.unsteady],
        )


def compared(
    file: str, plain: Mapping[str, Outcome], ours: Mapping[str, Outcome], reasons: Iterable[Reason]
) -> Comparison:
    reasons = list(reasons)
    listed: dict[str, str] = {}
    unlisted: dict[str, str] = {}
    ran = bool(passed(plain)) and bool(ours)
    for test in {**plain, **ours} if ran else ():
        if not differs(plain.get(test), ours.get(test)):
            continue
        why = next((reason.why for reason in reasons if reason.covers(test)), None)
        if why is None:
            unlisted[test] = ours[test].error if test in ours else "it did not run with ours"
        else:
            listed[test] = why
    return Comparison(
        file,
        len(plain),
        passed(plain),
        passed(ours),
        listed,
        unlisted,
        names=frozenset(plain),
        ran=ran,
    )


def differs(plain: Outcome | None, ours: Outcome | None) -> bool:
    """Whether a test passes plain and does anything else with ours. One that only exists with ours, such as
    those that have each subclass of a class as a parameter, must not fail."""
    if plain is None:
        return ours is not None and ours.outcome == "failed"
    return plain.outcome == "passed" and (ours is None or ours.outcome != "passed")


def passed(outcomes: Mapping[str, Outcome]) -> int:
    return sum(outcome.outcome == "passed" for outcome in outcomes.values())


def stale(reasons: Iterable[Reason], done: Sequence[Comparison]) -> list[Reason]:
    """Rows of the page whose tests ran and did not differ."""
    ran = {test for one in done if one.ran for test in one.names}
    differed = {test for one in done for test in (*one.differing, *one.unsteady)}
    return [
        reason for reason in reasons if any(map(reason.covers, ran)) and not any(map(reason.covers, differed))
    ]
