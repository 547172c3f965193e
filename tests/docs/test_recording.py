"""docs/pictures/demo.svg: the recorded demo, as the README and the start page show it."""

from __future__ import annotations

import re
from xml.etree import ElementTree

import pytest
from rich.text import Text

from docs.making import recording
from docs.making.recording import COLUMNS, LAST_SCREEN, LINE, LONGEST_WAIT, ROWS, Printed
from flows.board_tables import Row, table_of_items
from flows.quickstart import PAIRS
from tests.docs.pages import ROOT

pytestmark = pytest.mark.docs

SVG = "{http://www.w3.org/2000/svg}"
ADVICE = "python -m docs.making.recording --write"


@pytest.fixture(scope="module")
def text() -> str:
    return recording.PATH.read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def root(text: str) -> ElementTree.Element:
    return ElementTree.fromstring(text)


def words(root: ElementTree.Element) -> list[str]:
    return [found.text or "" for found in root.iter(f"{SVG}text")]


def test_it_is_one_file_that_loads_nothing(text: str, root: ElementTree.Element) -> None:
    assert len(text) < 60_000
    allowed = {"svg", "title", "style", "rect", "path", "circle", "text", "g"}
    assert {part.tag.removeprefix(SVG) for part in root.iter()} <= allowed
    attributes = {name for part in root.iter() for name in part.attrib}
    assert not [name for name in attributes if name.startswith("on") or "href" in name]
    style = root.findtext(f"{SVG}style") or ""
    assert "@import" not in style
    assert "url(" not in style


def test_it_shows_the_table_of_all_calls(root: ElementTree.Element) -> None:
    """Its headings and calls are those of the code: the picture is not older than the demo."""
    shown = words(root)
    headings = [str(column.header) for column in table_of_items({}).columns if column.header]
    missing = {*headings, *(" + ".join(pair) for pair in PAIRS)} - set(shown)
    assert not missing, f"{missing}: {ADVICE}"
    histories = " ".join(shown)
    for row in (
        Row(3, "success", codes=["503", "503", "200"]),
        Row(2, "success", codes=["slow", "200"]),
        Row(1, "fallback"),
    ):
        assert row.history in histories, ADVICE
    assert "The primary received 26 requests" in histories, f"the machine was too busy: {ADVICE}"


def test_without_animations_it_shows_the_end(root: ElementTree.Element) -> None:
    style = root.findtext(f"{SVG}style") or ""
    assert re.search(r"@media \(prefers-reduced-motion:reduce\)\{[^}]*animation:none", style)
    last = max(float(found.get("y", 0)) for found in root.iter(f"{SVG}text") if found.get("textLength"))
    (scrolled,) = [found for found in root.iter(f"{SVG}g") if found.get("class") == "scroll"]
    moved = re.fullmatch(r"translate\(0 (-?[\d.]+)\)", scrolled.get("transform", ""))
    assert moved is not None
    assert 0 <= ROWS * LINE - (last + float(moved[1])) < LINE, "the last line is the last of the window"
    (cover,) = [found for found in root.iter(f"{SVG}rect") if found.get("class") == "cover"]
    assert float(cover.get("y", 0)) > last


def test_it_begins_with_the_last_screen_and_loops_within_twenty_seconds(root: ElementTree.Element) -> None:
    style = root.findtext(f"{SVG}style") or ""
    timings = re.findall(r"([\d.]+)s step-end (-[\d.]+)s infinite", style)
    assert len(timings) == 2
    for seconds, begin in timings:
        assert float(seconds) <= 20
        assert float(seconds) + float(begin) == pytest.approx(LAST_SCREEN)


def test_long_waits_are_cut_and_blocks_stay_whole() -> None:
    lines = [Printed(at, Text("x")) for at in (0.0, 5.0, 5.001, 5.002, 5.3)]
    times = [line.at for line in recording.shortened(lines)]
    assert times == pytest.approx([0, LONGEST_WAIT, LONGEST_WAIT, LONGEST_WAIT, LONGEST_WAIT + 0.298])


def test_a_line_becomes_pieces_with_places() -> None:
    line = Text.assemble("  ", ("retry", "yellow"), "     a & b", ("  attempt 2", "dim"))
    drawn = recording.draw([Printed(0.0, line), Printed(1.0, Text("y" * (COLUMNS + 10)))])
    root = ElementTree.fromstring(drawn)
    assert words(root)[1:] == ["retry", "a & b", "attempt 2", "y" * COLUMNS]
    classes = [found.get("class") for found in root.iter(f"{SVG}text")][1:]
    assert classes == ["yellow", None, "dim", None]
    assert f"{1 + LAST_SCREEN:.2f}s" in drawn


def test_the_readme_and_the_start_page_show_it() -> None:
    name = str(recording.PATH.relative_to(ROOT / "docs"))
    assert f"](docs/{name})" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"]({name})" in (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
