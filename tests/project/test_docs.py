"""Links lead somewhere, and a measured figure has the command beside it that measures it again."""

import re
from pathlib import Path

import pytest

pytestmark = pytest.mark.docs

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "deployments").rglob("*.md")])
CODE = re.compile(r"^ *```.*?^ *```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)
MEASURED = re.compile(
    r"\b(?:measured|benchmark\w*|exponent)\b"
    r"|\b\d[\d.,]* ?(?:ns|µs|microseconds|MiB|times (?:less|more|faster|the))\b"
)
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))


def id_of(page: Path) -> str:
    return str(page.relative_to(ROOT))


def anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.*)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=id_of)
def test_every_link_leads_somewhere(page: Path) -> None:
    prose = CODE.sub("", page.read_text())
    for target in re.findall(r"\]\(([^)\s]+)\)", prose):
        if re.match(r"[a-z]+:", target):
            continue
        file, _, anchor = target.partition("#")
        there = (page.parent / file).resolve() if file else page
        assert there.exists(), target
        assert not anchor or there.suffix != ".md" or anchor in anchors(there), target


@pytest.mark.parametrize("page", PAGES, ids=id_of)
def test_a_measured_figure_has_its_command_beside_it(page: Path) -> None:
    for section in re.split(r"^(?=## )", page.read_text(), flags=re.MULTILINE):
        if MEASURED.search(CODE.sub("", section)):
            named = set(re.findall(r"\bmake ([a-z-]+)", section)) & TARGETS
            assert named or "python -m benchmarks." in section, section[:300]
