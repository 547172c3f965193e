"""The site that `make docs` makes: every page has its place, and nothing is loaded from elsewhere."""

import re
from collections.abc import Iterator
from importlib.metadata import requires
from typing import Any

import pytest
import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from docs.making import licences
from tests.docs.pages import DOCS, ROOT, pages

pytestmark = pytest.mark.docs

SITE: dict[str, Any] = yaml.safe_load((ROOT / "mkdocs.yml").read_text())


def named(nav: list[dict[str, Any] | str]) -> Iterator[str]:
    for entry in nav:
        for place in [entry] if isinstance(entry, str) else entry.values():
            if isinstance(place, str):
                yield place
            else:
                yield from named(place)


def test_every_page_has_its_place_once() -> None:
    assert sorted(named(SITE["nav"])) == sorted(str(page.relative_to(DOCS)) for page in pages())


def test_nothing_is_loaded_from_elsewhere() -> None:
    assert SITE["theme"]["font"] is False
    assert "extra_javascript" not in SITE
    styles = [DOCS / name for name in SITE["extra_css"]]
    own = [*styles, *(ROOT / SITE["theme"]["custom_dir"]).rglob("*.*")]
    for file in own:
        text = file.read_text(encoding="utf-8")
        assert not re.search(r"@import|url\(|<(script|link|iframe)\b|(src|href)=\"\w+:", text), file.name
    for page in pages():
        text = page.read_text(encoding="utf-8")
        assert not re.search(r"!\[[^\]]*\]\(\w+://|<(img|script|link)\b", text), page.name
        assert "```mermaid" not in text, f"{page.name}: its script would be loaded from elsewhere"


def test_the_licences_of_all_direct_dependencies_are_listed() -> None:
    listed = set(re.findall(r"^\| ([\w.-]+) \|", licences.PAGE.read_text(encoding="utf-8"), re.MULTILINE))
    direct = [Requirement(line) for line in requires("prefect-resilience") or []]
    wanted = {canonicalize_name(one.name) for one in direct if one.marker is None}
    assert wanted <= listed
    assert "GPL" not in licences.page()
