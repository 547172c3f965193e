"""What docs/effects.md says, as its reader does it: every block of code, in order."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.durable.effects.receiver import Receiver

PAGE = Path(__file__).parents[3] / "docs" / "effects.md"
BLOCK = re.compile(r"(?:^`([\w.]+)`:\n\n)?^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)


def test_the_page_does_as_it_says(
    prefect_api: None, cli: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    receiver = Receiver()
    monkeypatch.setenv("PAYMENTS", receiver.url)
    monkeypatch.syspath_prepend(str(tmp_path))
    names: dict[str, Any] = {"__name__": "documentation"}
    seen: list[str] = []
    for name, language, text in BLOCK.findall(PAGE.read_text(encoding="utf-8")):
        seen.append(language)
        if name:
            (tmp_path / name).write_text(text)
        elif language == "python":
            exec(compile(text, str(PAGE), "exec"), names)
        else:
            assert language == "sh", f"what is a block of {language}?"
            for line in text.splitlines():
                program, *words = shlex.split(line)
                done = cli(*words)
                assert (program, done.code) == ("prefect-resilience", 0), f"{line}\n{done.out}{done.err}"
    receiver.close()
    sys.modules.pop("orders")
    assert (seen.count("python"), seen.count("sh")) == (9, 4)
    assert receiver.taken == {
        "charge:1": 1,
        "charge:2": 1,
        "compensate:charge:2": 1,
        "compensate:charge:1": 1,
        "receipt:3": 1,
    }
