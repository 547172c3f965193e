"""`DiagnosisFinding`: one problem and how to fix it. `Diagnosis`: all findings."""

from __future__ import annotations

from typing import Literal

from pydantic import BaseModel

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


def wrong(check: str, where: str, says: str, mend: str) -> DiagnosisFinding:
    return DiagnosisFinding(check=check, where=where, says=says, mend=mend)


def note(check: str, where: str, says: str, mend: str) -> DiagnosisFinding:
    return DiagnosisFinding(check=check, where=where, says=says, mend=mend, level="note")


def skewed(where: str, whose: str, seconds: float, digits: int = 0) -> DiagnosisFinding:
    way = "ahead of" if seconds > 0 else "behind"
    says = f"{whose} clock is {abs(seconds):.{digits}f} s {way} this machine's"
    mend = "Synchronize the clocks of both machines with NTP (chrony or systemd-timesyncd)."
    return wrong("clocks", where, says, mend)


class Diagnosis(BaseModel, frozen=True):
    """The findings of all checks. `checks`: the names of the checks that ran, in order."""

    checks: tuple[str, ...]
    findings: tuple[DiagnosisFinding, ...]

    @property
    def healthy(self) -> bool:
        """Whether nothing is wrong. Notes do not count."""
        return all(finding.level != "wrong" for finding in self.findings)
