"""For each row the replacements that take its feature out: `breaks/<document>.txt`.

A break is a paragraph: its row and what it takes out; a file of the package; a text that is in that file
once, with `- ` before each line; and the text in its place, with `+ `. A line may be given in part. More
replacements, in the same file or in another, follow.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from tests.requirements.table import ROOT, rows

BREAKS = Path(__file__).with_name("breaks")
PACKAGE = "prefect_resilience"


@dataclass(frozen=True)
class Replacement:
    """`file` is relative to the package."""

    file: str
    old: str
    new: str

    def problem(self, root: Path) -> str | None:
        """Why it cannot be applied to this tree."""
        path = root / PACKAGE / self.file
        if not path.is_file():
            return f"there is no {path}"
        times = path.read_text().count(self.old)
        return None if times == 1 else f"{self.file} has this text {times} times, not once: {self.old!r}"

    def apply(self, root: Path) -> None:
        path = root / PACKAGE / self.file
        path.write_text(path.read_text().replace(self.old, self.new))


@dataclass(frozen=True)
class Break:
    """One way to take the feature of a row out."""

    row: str
    takes_out: str
    replacements: tuple[Replacement, ...]


def read_breaks(folder: Path = BREAKS) -> list[Break]:
    paragraphs = (text for file in sorted(folder.glob("*.txt")) for text in file.read_text().split("\n\n"))
    found = [_break(text.strip("\n").splitlines()) for text in paragraphs]
    return sorted(found, key=lambda found: found.row)


def _break(lines: list[str]) -> Break:
    row, _, takes_out = lines[0].partition(" ")
    return Break(row, takes_out, tuple(_replacements(lines[1:])))


def _replacements(lines: list[str]) -> Iterator[Replacement]:
    file, old, new = "", list[str](), list[str]()
    for line in [*lines, ""]:
        sign, text = line[:2], line[2:]
        if old and sign != "+ " and (new or sign != "- "):
            yield Replacement(file, "\n".join(old), "\n".join(new))
            old, new = [], []
        if sign == "- ":
            old.append(text)
        elif sign == "+ ":
            new.append(text)
        else:
            file = line


def problems() -> list[str]:
    """Each break that cannot be applied to this tree, and each row without a break."""
    breaks = read_breaks()
    missing = sorted({row.id for row in rows()} - {each.row for each in breaks})
    unknown = sorted({each.row for each in breaks} - {row.id for row in rows()})
    return [
        *(f"row {id} has no break" for id in missing),
        *(f"there is no row {id}" for id in unknown),
        *(
            f"row {each.row}: {problem}"
            for each in breaks
            for replacement in each.replacements
            if (problem := replacement.problem(ROOT))
        ),
    ]
