"""docs/pictures/demo.svg: the recorded demo, as the README and the start page show it."""

from xml.etree import ElementTree

import pytest

from docs.making import recording
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


def test_the_readme_and_the_start_page_show_it() -> None:
    name = str(recording.PATH.relative_to(ROOT / "docs"))
    assert f"](docs/{name})" in (ROOT / "README.md").read_text(encoding="utf-8")
    assert f"]({name})" in (ROOT / "docs" / "index.md").read_text(encoding="utf-8")
