"""`DiagnosisFinding`: one problem and how to fix it. `Diagnosis`: all findings."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from importlib.resources import files
from typing import Any, Literal

import yaml
from pydantic import BaseModel

from prefect_resilience.errors.secrets.redact import redact, redact_data

Level = Literal["wrong", "note"]


class DiagnosisFinding(BaseModel, frozen=True):
    """One problem, and how to fix it.

    `check`: the name of the check. `where`: the place of the problem. `says`: the problem, in one sentence.
    `mend`: the fix, in one sentence. `level`: "wrong", or "note" if it may be intended.
    """

    check: str
    where: str
    says: str
    mend: str
    level: Level = "wrong"


class Diagnosis(BaseModel, frozen=True):
    """The findings of all checks. `checks`: the names of the checks that ran, in order."""

    checks: tuple[str, ...]
    findings: tuple[DiagnosisFinding, ...]

    @property
    def healthy(self) -> bool:
        """Whether nothing is wrong. Notes do not count."""
        return all(finding.level != "wrong" for finding in self.findings)


def finding(kind: str, where: str, level: Level | None = None, /, **words: object) -> DiagnosisFinding:
    """The finding of this kind in findings.yaml. `words`: values for its placeholders."""
    row = _table()[kind]
    words = redact_data(words)
    return DiagnosisFinding(
        check=kind.partition(".")[0],
        where=redact(where),
        says=row["says"].format(**words),
        mend=row["mend"].format(**words),
        level=level or row.get("level", "wrong"),
    )


def skew(
    where: str, whose: str, before: float, there: float, after: float, most: float
) -> Iterator[DiagnosisFinding]:
    """The finding about a clock that said `there` between two times of this machine, if they differ."""
    seconds = there - after if there > after else min(0.0, there - before)
    if abs(seconds) > most:
        way = "ahead of" if seconds > 0 else "behind"
        yield finding("clocks.skew", where, whose=whose, seconds=f"{abs(seconds):.1f}", way=way)


@cache
def _table() -> dict[str, dict[str, Any]]:
    return yaml.safe_load(
        (files("prefect_resilience.operations.diagnosis") / "findings.yaml").read_text("utf-8")
    )
