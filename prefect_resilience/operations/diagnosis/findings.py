"""`DiagnosisFinding`: one thing that is wrong, and how to mend it; `Diagnosis`: all of them."""

from __future__ import annotations

from typing import ClassVar, Literal

from pydantic import BaseModel, ConfigDict

Level = Literal["wrong", "note"]


class DiagnosisFinding(BaseModel):
    """One thing that somebody should know.

    `check` is which of the checks found it, `where` the thing itself, `says` what is the matter with it, and
    `mend` what to do about it, in one sentence each. `level`: something is "wrong" and will not work as it is
    meant to, or it is a "note" of what may well be meant.
    """

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)

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
    mend = "Let both machines set their clocks by NTP (chrony or systemd-timesyncd)."
    return wrong("clocks", where, says, mend)


class Diagnosis(BaseModel):
    """What the checks found. `checks` are those that were made, in their order."""

    model_config: ClassVar[ConfigDict] = ConfigDict(frozen=True)

    checks: tuple[str, ...]
    findings: tuple[DiagnosisFinding, ...]

    @property
    def healthy(self) -> bool:
        """Whether nothing is wrong; there may be notes."""
        return all(finding.level != "wrong" for finding in self.findings)
