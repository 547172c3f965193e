"""Each requirement is shown by a test, and the page says by which."""

from pathlib import Path

import pytest

from tests.requirements.breaking import problems, read_breaks
from tests.requirements.table import DOCUMENTS, PAGE, page, rows, unknown

pytestmark = pytest.mark.docs


def test_a_test_shows_each_row() -> None:
    found = rows()
    assert [row.id for row in found if not row.tests] == []
    assert {row.id.partition(".")[0] for row in found} == {*DOCUMENTS}


def test_no_test_names_a_row_that_there_is_not() -> None:
    assert unknown() == []


def test_each_row_has_a_break_that_fits_the_code() -> None:
    """Where code has moved, mend the texts in `breaks/`, then `python -m tests.requirements --break ROW`."""
    assert problems() == []


def test_a_break_replaces_several_lines_in_several_files(tmp_path: Path) -> None:
    text = (
        "003.24 the first\na.py\n- one\n- two\n+ three\n- four\nb/c.py\n- five\n+ six\n\n001.01 x\nd.py\n- y"
    )
    (tmp_path / "any.txt").write_text(text)
    first, second = read_breaks(tmp_path)
    assert (second.row, second.takes_out) == ("003.24", "the first")
    assert [(each.file, each.old, each.new) for each in second.replacements] == [
        ("a.py", "one\ntwo", "three"),
        ("a.py", "four", ""),
        ("b/c.py", "five", "six"),
    ]
    assert first.replacements[0].old == "y"
    package = tmp_path / "prefect_resilience"
    package.mkdir()
    (package / "d.py").write_text("xyz")
    assert first.replacements[0].problem(tmp_path) is None
    first.replacements[0].apply(tmp_path)
    assert (package / "d.py").read_text() == "xz"
    assert "0 times" in str(first.replacements[0].problem(tmp_path))
    assert "there is no" in str(second.replacements[0].problem(tmp_path))


def test_the_page_is_up_to_date() -> None:
    assert PAGE.read_text() == page(), "write it: python -m tests.requirements --write"
