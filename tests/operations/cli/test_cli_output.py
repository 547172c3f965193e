"""Where the output of a command goes: closed, full, or in an encoding that lacks its characters."""

import subprocess

import pytest

from tests.operations.cli.conftest import COMMAND

FULL = "The output could not be written: No space left on device\n"


def shell(line: str) -> tuple[int, str, str]:
    """The exit code of the command itself, and what the line printed."""
    line = f"set -o pipefail; {line.replace('CLI', ' '.join(COMMAND))}"
    done = subprocess.run(["bash", "-c", line], capture_output=True, text=True, timeout=120, check=False)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    ("line", "code", "says"),
    [
        ("CLI circuits list > /dev/full", 1, FULL),
        ("CLI circuits list --json | true", 0, ""),
        ("CLI circuits list >&-", 0, ""),
        *(
            pytest.param(line, code, says, marks=pytest.mark.slow)
            for line, code, says in (
                ("CLI circuits list --json > /dev/full", 1, FULL),
                ("CLI circuits list --json >&- <&-", 0, ""),
                ("CLI --help > /dev/full", 1, FULL),
                ("CLI circuits watch --json --interval 0.1 > /dev/full", 1, FULL),
                ("CLI circuits show nosuch 2>/dev/full", 1, ""),
                ("CLI circuits show nosuch >&- 2>&- <&-", 1, ""),
            )
        ),
    ],
)
def test_output_that_cannot_be_written(circuits: str, line: str, code: int, says: str) -> None:
    done, out, err = shell(line)
    assert (done, out, err) == (code, "", says)


@pytest.mark.slow
def test_an_encoding_without_the_signs(circuits: str) -> None:
    code, out, err = shell("LC_ALL=C PYTHONUTF8=0 PYTHONCOERCECLOCALE=0 CLI circuits list")
    assert (code, err) == (0, "")
    assert out.isascii()
    assert "llm:primary" in out
