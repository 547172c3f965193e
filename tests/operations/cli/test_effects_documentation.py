"""What docs/effects.md says, as its reader does it: every block of code, in order, and what it prints."""

import sys
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from tests.docs.pages import DOCS, blocks
from tests.docs.reading import Reader

PAGE = DOCS / "effects.md"


def test_the_page_does_as_it_says(
    prefect_api: None, cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PAYMENTS", "")  # the page sets it
    monkeypatch.syspath_prepend(str(tmp_path))
    reader = Reader(tmp_path, cli)
    try:
        reader.follow(PAGE, every_command=True)
        provider = reader.names["provider"]
    finally:
        sys.modules.pop("orders", None)
    provider.close()
    assert {block.language for block in blocks(PAGE)} == {"python", "sh", "text"}
    assert reader.compared > 10
    posts = [one.headers["Idempotency-Key"] for one in provider.requests if one.method == "POST"]
    assert Counter(posts) == {
        "charge:1": 1,
        "charge:2": 1,
        "compensate:charge:2": 1,
        "compensate:charge:1": 1,
        "receipt:3": 1,
    }
