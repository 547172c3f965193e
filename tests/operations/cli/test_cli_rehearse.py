"""`rehearse`: the table, JSON and JUnit XML of a result, and what is wrong with the options."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import pytest

from prefect_resilience.operations.cli import look
from prefect_resilience.operations.cli.rehearse import junit_of, parts
from prefect_resilience.testing import Rehearsal
from prefect_resilience.testing.kill_points import RehearsedThing
from tests.docs.pages import DOCS
from tests.docs.reading import Reader
from tests.operations.cli.conftest import Done

ROWS = [
    RehearsedThing(thing="POST /pay pay:7", verdict="once", task="pay", line="billing.py:9"),
    RehearsedThing(thing="POST /mail", verdict="twice", task="bill", line="billing.py:14", kill="after it"),
    RehearsedThing(thing="POST /ship", verdict="stopped", task="ship", line="billing.py:15", kill="after it"),
]
RESULT = Rehearsal(
    flow="bill", rows=ROWS, points=9, cases=8, kills=6, unseen=["open x: not counted"], unjudged=["it hangs"]
)


def test_a_person_reads_a_table(capsys: pytest.CaptureFixture[str]) -> None:
    look.show(*parts(RESULT))
    out = capsys.readouterr().out
    assert "✗ twice" in out
    assert "billing.py:14  after it" in out
    assert "it hangs" in out
    assert "not seen  open x: not counted" in out
    assert out.endswith("3 things, 6 kills at 8 of 9 points: 1 sent twice or lost.\n")
    look.show(*parts(Rehearsal(flow="bill", rows=[], points=0, cases=0, kills=0)))
    assert "0 things, 0 kills at 0 of 0 points: nothing sent twice or lost." in capsys.readouterr().out


def test_ci_reads_junit() -> None:
    suite = ElementTree.fromstring(junit_of(RESULT))
    assert suite.attrib == {"name": "rehearse bill", "tests": "4", "failures": "1", "errors": "1"}
    paid, mailed, shipped, hangs = suite
    assert (paid.get("classname"), paid.get("name"), len(paid)) == ("pay", "POST /pay pay:7", 0)
    assert mailed.findtext("failure") == "POST /mail: twice, billing.py:14, shown by: after it"
    assert shipped.findtext("system-out") == "POST /ship: stopped, billing.py:15, shown by: after it"
    assert [child.get("message") for child in hangs] == ["it hangs"]


@pytest.mark.parametrize(
    ("words", "says"),
    [
        (["--keep", "."], "The folder . for the cases is not empty: name a new one"),
        (["--with", "none.json"], "--with none.json has no JSON object"),
        (["--with", "list.json"], "--with list.json has no JSON object"),
        (["--receiver", "empty.py"], "--receiver empty.py has no function `receiver`"),
    ],
)
def test_a_wrong_option_is_named(
    words: list[str], says: str, cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "list.json").write_text("[]")
    (tmp_path / "empty.py").write_text("")
    assert says in cli("rehearse", "billing.py:bill", *words).sentence
    sys.modules.pop("empty", None)


@pytest.mark.long
@pytest.mark.api
@pytest.mark.timeout(600)
def test_the_page_prints_what_it_shows(
    prefect_api: None, cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "bill.json").write_text('{"order": 7, "bank": "{receiver}"}')
    reader = Reader(tmp_path, cli)
    reader.follow(DOCS / "howto" / "rehearse.md", code=False)
    assert reader.compared == 1
    junit = tmp_path / "out.xml"
    point = "after request POST /mails"
    words = ("billing.py:bill", "--with", "bill.json", "--receiver", "bank.py", "--only", point)
    done: Done = cli("rehearse", *words, "--junit", str(junit), "--json", "--keep", str(tmp_path / "kept"))
    assert done.code == 1
    assert [row["verdict"] for row in done.json["rows"]] == ["once", "twice"]
    assert ElementTree.parse(junit).getroot().get("failures") == "1"
    assert (tmp_path / "kept" / "001" / "ledger.db").exists()
    assert "There is no point 'x'" in cli("rehearse", *words[:3], "--only", "x").err
    assert "missing a required argument: 'order'" in cli("rehearse", "billing.py:bill").err
