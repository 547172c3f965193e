"""Words that the pages, docstrings and messages do not use, and the ones to use instead.

python -m docs.making.words                 all pages, docstrings and messages; exit code 1 with findings
python -m docs.making.words docs/plans.md prefect_resilience/graphs/plans
                                            only these files and folders

Code is not read: neither blocks nor `inline code` of pages and docstrings.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from docs.making.strings import ROOT, texts

TERMS = {
    r"(?:tr(?:ies|ied|ying)|asks?|asked|asking|calls?|called|calling) (?:again|once more)": "retry, retried",
    r"errors? (?:that|which) (?:may|might) pass": "transient error",
    r"answer(?:s|ed)? instead": "Fallback '...' used",
    r"lesser": "degraded",
    r"(?<!connection )(?<!connections )refus(?:e|es|ed|ing|als?)(?! connections?)": "rejected",
    r"left behind|go(?:es)? on beside": "abandoned call",
    r"what was sent|done or not": "side effect, outcome unknown",
    r"undo|undoes|undone|undoing|t(?:ake|aken|akes|ook) back": "compensate, roll back",
    r"given up on": "dead letter",
    r"at night": "Operations",
    r"stands? in (?:the|a|its|their|Prefect)": "is visible in, is in",
    r"(?:is|was|were|are) away": "unavailable",
    r"nobody|somebody|nobody of that name": "the operator, the worker; not found",
    r"mend(?:s|ed|ing)?": "fix",
    r"(?:is|are|was|were) told(?: apart)?|told apart|tells? of": "a verb of the field",
    r"shall|lest|ought|thereof|whereof|of which|of whom": "a second sentence",
    r"misbehaves?": "fails",
    r"a riddle|by and by|all the same": "plain words",
    r"(?<!there )(?<!this )(?:is|are) no (?!longer|more|less|such|other)\w+": "is not a ...",
}
PATTERNS = [(re.compile(rf"\b(?:{term})\b", re.IGNORECASE), better) for term, better in TERMS.items()]
FENCED = re.compile(r"^ *```.*?^ *```$|^    (?:>>>|\.\.\.).*$|<!--.*?-->", re.MULTILINE | re.DOTALL)
INLINE = re.compile(r"`[^`\n]*`|\]\([^)\s]*\)|\{[^}\n]*\}")


class Finding(NamedTuple):
    """A word at its place. `line` is that of the text in which it is, for messages and docstrings."""

    place: str
    line: int
    word: str
    better: str

    def __str__(self) -> str:
        return f"{self.place}:{self.line}: {self.word!r}: say {self.better}"


def findings(paths: list[Path] | None = None) -> Iterator[Finding]:
    """The findings in the pages and in the package, or in these files and folders."""
    for page in pages():
        if _asked(page, paths):
            yield from _in_text(page, 1, page.read_text(encoding="utf-8"), lines=True)
    for text in texts():
        if _asked(text.path, paths):
            yield from _in_text(text.path, text.line, text.text, lines=False)


def pages() -> list[Path]:
    own = [page for page in ROOT.glob("*.md") if page.name != "CHANGELOG.md"]
    return sorted([*own, *(ROOT / "docs").rglob("*.md"), *(ROOT / "flows").glob("*/README.md")])


def _asked(path: Path, paths: list[Path] | None) -> bool:
    return not paths or any(path == one or one in path.parents for one in paths)


def _in_text(path: Path, line: int, text: str, *, lines: bool) -> Iterator[Finding]:
    prose = INLINE.sub(_blank, FENCED.sub(_blank, text))
    for pattern, better in PATTERNS:
        for found in pattern.finditer(prose):
            there = line + prose.count("\n", 0, found.start()) if lines else line
            yield Finding(str(path.relative_to(ROOT)), there, found[0], better)


def _blank(found: re.Match[str]) -> str:
    return re.sub(r"[^\n]", " ", found[0])


def main() -> None:
    found = list(findings([Path(name).resolve() for name in sys.argv[1:]]))
    for one in sorted(found):
        print(one)
    print(f"{len(found)} findings" if found else "No findings.")
    raise SystemExit(bool(found))


if __name__ == "__main__":
    main()
