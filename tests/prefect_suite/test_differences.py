"""How the outcomes of Prefect's suite are compared. The suite itself is run by hand, on a checkout."""

import re
from pathlib import Path

from tests.prefect_suite.differences import PAGE, Outcome, Reason, compared, read_reasons

PASSED, FAILED = Outcome("passed"), Outcome("failed", "assert 1 == 2")


def test_a_difference_is_what_passes_plain_and_does_not_with_ours() -> None:
    plain = {"same": PASSED, "broken": PASSED, "gone": PASSED, "never": FAILED, "mended": FAILED}
    ours = {"same": PASSED, "broken": FAILED, "never": FAILED, "mended": PASSED}
    found = compared("tests/test_x.py", plain, ours, [])
    assert found.unlisted == {"broken": "assert 1 == 2", "gone": "it did not run with ours"}
    assert found.numbers == (5, 3, 2, 0, 2, 0)


def test_a_listed_difference_has_its_reason() -> None:
    reasons = [Reason("tests/f.py::TestX::*", "because")]
    tests = {"tests/f.py::TestX::test_y[a]": PASSED, "tests/f.py::test_z": PASSED}
    found = compared("tests/f.py", tests, dict.fromkeys(tests, FAILED), reasons)
    assert found.listed == {"tests/f.py::TestX::test_y[a]": "because"}
    assert list(found.unlisted) == ["tests/f.py::test_z"]


def test_every_row_of_the_page_is_read(tmp_path: Path) -> None:
    rows = re.findall(r"^\| `?tests/", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(read_reasons(PAGE)) == len(rows)
    page = tmp_path / "page.md"
    page.write_text("| test | why |\n|---|---|\n| `tests/f.py::test[*]` | A sentence. |\n", encoding="utf-8")
    assert read_reasons(page) == [Reason("tests/f.py::test[*]", "A sentence.")]
