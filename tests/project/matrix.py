"""`make matrix`: the README's own commands, with every Python of this machine and the Prefects that install.

Each combination has a fresh clone of HEAD and an environment of its own: `make demo`, then `make test`. A
combination that was tried at this commit is not tried again. `--write` puts the table into docs/versions.md.

    python -m tests.project.matrix [--python PATH ...] [--prefect 3.9.1 ...] [--write]
"""

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import asdict, dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]
PLACE = ROOT / ".pytest_cache" / "matrix"
PAGE = ROOT / "docs" / "versions.md"
BEGIN, END = "<!-- make matrix --write -->\n", "<!-- end -->\n"
MINORS = ("3.11", "3.12", "3.13", "3.14", "3.15")
PREFECTS = ("3.8.8", "3.9.1")
COMMAND_SECONDS = 3600
# What pip says of a pinned version that something else wants newer
PINNED = re.compile(r"The user requested \(constraint\) (\S+==\S+)")


@dataclass(frozen=True)
class Cell:
    """One combination: what its two commands came to. "" where a command was not reached."""

    python: str
    prefect: str
    installer: str
    demo: str
    tests: str

    @property
    def good(self) -> bool:
        return self.demo == "runs" and "failed" not in self.tests and "passed" in self.tests


def pythons() -> dict[str, Path]:
    """The newest interpreter of each supported minor version: of PATH, else of pyenv."""
    found: dict[str, Path] = {}
    versions = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv")) / "versions"
    for minor in MINORS:
        of_pyenv = sorted(versions.glob(f"{minor}.*/bin/python"))
        on_path = shutil.which(f"python{minor}")
        for path in [*reversed(of_pyenv), *([Path(on_path)] if on_path else [])]:
            if version := full_version(path):
                found[version] = path
                break
    return found


def full_version(python: Path) -> str:
    """Such as 3.12.1; "" for a file that does not start as a Python."""
    told = subprocess.run([python, "--version"], capture_output=True, text=True, check=False)
    return told.stdout.removeprefix("Python ").strip() if told.returncode == 0 else ""


def make(folder: Path, target: str, *variables: str) -> tuple[int, str]:
    """Run a target in a clone; its exit code and what it printed."""
    environment = {
        key: value for key, value in os.environ.items() if not key.startswith(("PREFECT_", "VIRTUAL"))
    }
    done = subprocess.run(
        ["make", *variables, target],
        cwd=folder,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=COMMAND_SECONDS,
        check=False,
    )
    (folder.parent / f"{folder.name}-{target}.txt").write_text(done.stdout)
    return done.returncode, done.stdout


def cloned(folder: Path, prefect: str) -> None:
    """A fresh clone in which constraints.txt names this Prefect."""
    shutil.rmtree(folder, ignore_errors=True)
    subprocess.run(["git", "clone", "--quiet", "--no-hardlinks", ROOT, folder], check=True)
    constraints = folder / "constraints.txt"
    constraints.write_text(re.sub(r"(?m)^prefect==.*$", f"prefect=={prefect}", constraints.read_text()))


def tried(version: str, python: Path, prefect: str) -> Cell:
    folder = PLACE / f"python-{version}-prefect-{prefect}"
    cloned(folder, prefect)
    variables, installer = [f"PYTHON={python}"], "pip"
    code, printed = make(folder, "demo", *variables)
    if code and "ResolutionImpossible" in printed:
        # Prefect 3.9.1 wants a certifi that an index may not have yet: the pinned one instead
        pinned = set(
            PINNED.findall(output(folder, "install", "--dry-run", "-c", "constraints.txt", "-e", "."))
        )
        (folder / ".venv" / "override.txt").write_text("\n".join(sorted(pinned)))
        uv = f"{Path(sys.executable).parent / 'uv'} pip install --quiet --python .venv/bin/python"
        variables.append(f"PIP_INSTALL={uv} -c constraints.txt --override .venv/override.txt")
        code, printed = make(folder, "demo", *variables)
        installer = f"uv --override; {unmet(folder)}"
    if code:
        return Cell(version, prefect, installer, f"fails: {last_line(printed)}", "")
    _, printed = make(folder, "test", *variables)
    shutil.rmtree(folder / ".venv")
    return Cell(version, prefect, installer, "runs", last_line(printed))


def output(folder: Path, *words: str) -> str:
    """What a command of pip prints in the environment of a clone."""
    command = [folder / ".venv/bin/python", "-m", "pip", *words]
    done = subprocess.run(
        command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    return done.stdout


def unmet(folder: Path) -> str:
    """What was installed although something asks for another version."""
    return output(folder, "check").strip().replace("\n", "; ").rstrip(".")


def last_line(printed: str) -> str:
    """pytest's line of results if there is one, without its time, else the last line."""
    results = re.findall(r"(?m)^=*\s*((?:\d+ \w+,? ?)+) in [\d.]+s", printed)
    lines = printed.strip().splitlines() or ["nothing was printed"]
    return results[-1] if results else lines[-1].strip()


def table(cells: list[Cell]) -> str:
    rows = ["| " + " | ".join(asdict(cell).values()) + " |" for cell in cells]
    head = ["| Python | Prefect | installed with | `make demo` | `make test` |", "|---|---|---|---|---|"]
    return "\n".join([*head, *rows, ""])


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--python", nargs="+", type=Path, default=None, help="interpreters to try")
    parser.add_argument("--prefect", nargs="+", default=PREFECTS, help="versions of Prefect to try")
    parser.add_argument("--write", action="store_true", help="put the table into docs/versions.md")
    options = parser.parse_args()
    interpreters = {full_version(path): path for path in options.python} if options.python else pythons()
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=True
    ).stdout.strip()
    PLACE.mkdir(parents=True, exist_ok=True)
    cells: list[Cell] = []
    for version, python in interpreters.items():
        for prefect in options.prefect:
            kept = PLACE / f"{commit}-{version}-{prefect}.json"
            if not kept.exists():
                print(f"Python {version} with Prefect {prefect} ...", flush=True)
                kept.write_text(json.dumps(asdict(tried(version, python, prefect))))
            cells.append(Cell(**json.loads(kept.read_text())))
            print(table(cells[-1:]).splitlines()[-1], flush=True)
    print(f"\n{table(cells)}")
    if options.write:
        before, _, rest = PAGE.read_text().partition(BEGIN)
        PAGE.write_text(f"{before}{BEGIN}{table(cells)}{END}{rest.partition(END)[2]}")
    return 0 if all(cell.good for cell in cells) else 1


if __name__ == "__main__":
    sys.exit(main())
