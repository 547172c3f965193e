"""How the outcomes of Prefect's suite are compared. The suite itself is run by hand, on a checkout."""

import re
from pathlib import Path

from tests.prefect_suite.differences import PAGE, Outcome, Reason, compared, read_reasons, stale

PASSED, FAILED = Outcome("passed"), Outcome("failed", "assert 1 == 2")


def test_a_difference_is_what_passes_plain_and_does_not_with_ours() -> None:
    plain = {"same": PASSED, "broken": PASSED, "gone": PASSED, "never": FAILED, "mended": FAILED}
    ours = {"same": PASSED, "broken": FAILED, "never": FAILED, "mended": PASSED}
    found = compared("tests/test_x.py", plain, ours, [])
    assert found.unlisted == {"broken": "assert 1 == 2", "gone": "it did not run with ours"}
    assert found.numbers == (5, 3, 2, 0, 2, 0)


def test_a_skipped_test_differs_too() -> None:
    assert compared("f", {"t": PASSED}, {"t": Outcome("skipped")}, []).differing == ["t"]


def test_a_test_that_only_exists_with_ours_must_not_fail() -> None:
    ours = {"t": PASSED, "t[ours]": PASSED, "t[bad]": FAILED, "t[skipped]": Outcome("skipped")}
    assert compared("f", {"t": PASSED}, ours, []).differing == ["t[bad]"]


def test_a_listed_difference_has_its_reason() -> None:
    reasons = [Reason("tests/f.py::TestX::*", "because")]
    tests = {"tests/f.py::TestX::test_y[a]": PASSED, "tests/f.py::test_z": PASSED}
    found = compared("tests/f.py", tests, dict.fromkeys(tests, FAILED), reasons)
    assert found.listed == {"tests/f.py::TestX::test_y[a]": "because"}
    assert list(found.unlisted) == ["tests/f.py::test_z"]


def test_what_passes_the_second_time_is_unsteady() -> None:
    found = compared("f", {"a": PASSED, "b": PASSED}, {"a": FAILED, "b": FAILED}, [])
    after = found.after({"a": PASSED, "b": FAILED})
    assert (after.differing, after.unsteady) == (["b"], ["a"])


def test_a_row_is_stale_when_its_tests_ran_and_none_differed() -> None:
    same, absent = Reason("tests/f.py::same", "once"), Reason("tests/g.py::*", "did not run")
    differing = Reason("tests/f.py::differs", "still")
    plain = {"tests/f.py::same": PASSED, "tests/f.py::differs": PASSED}
    ours = {"tests/f.py::same": PASSED, "tests/f.py::differs": FAILED}
    done = [compared("tests/f.py", plain, ours, [same, absent, differing])]
    assert stale([same, absent, differing], done) == [same]


def test_a_file_without_outcomes_did_not_run() -> None:
    assert not compared("f", {}, {"t": PASSED}, []).ran
    broken_off = compared("f", {"t": PASSED}, {}, [])
    assert (broken_off.ran, broken_off.differing) == (False, [])
    without_a_server = compared("f", {"t": FAILED}, {"t": FAILED, "t[ours]": FAILED}, [Reason("t", "why")])
    assert (without_a_server.ran, without_a_server.differing) == (False, [])


def test_brackets_of_parameters_are_taken_as_they_stand() -> None:
    reason = Reason("tests/f.py::test[a*]", "why")
    assert reason.covers("tests/f.py::test[a-1]")
    assert not reason.covers("tests/f.py::testa")


def test_every_row_of_the_page_is_read(tmp_path: Path) -> None:
    rows = re.findall(r"^\| `?tests/", PAGE.read_text(encoding="utf-8"), re.MULTILINE)
    assert len(read_reasons(PAGE)) == len(rows)
    page = tmp_path / "page.md"
    page.write_text("| test | why |\n|---|---|\n| `tests/f.py::test[*]` | A sentence. |\n", encoding="utf-8")
    assert read_reasons(page) == [Reason("tests/f.py::test[*]", "A sentence.")]
