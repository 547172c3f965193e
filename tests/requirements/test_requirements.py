"""Each requirement is shown by a test, and the page says by which."""

from __future__ import annotations

import pytest

from tests.requirements.table import DOCUMENTS, PAGE, page, rows, unknown

pytestmark = pytest.mark.docs


def test_a_test_shows_each_row() -> None:
    found = rows()
    assert [row.id for row in found if not row.tests] == []
    assert {row.id.partition(".")[0] for row in found} == {*DOCUMENTS}


def test_no_test_names_a_row_that_there_is_not() -> None:
    assert unknown() == []


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == page(), "write it: python -m tests.requirements --write"
