"""`make mutants`: would the tests see it if a decision were wrong?

mutmut changes one operator, name or number at a time in the files that decide, and runs the tests of that
file against each change. What no test sees is a survivor; more than 5 % of them fail the run, for each file.
A run that was stopped goes on where it was. Survivors are tried again when their tests have changed.

    python -m tests.project.mutants [machine window ...] [--workers 2] [--show]
"""

import argparse
import filecmp
import json
import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

from tests.project.mutants_equivalent import means_the_same

ROOT = Path(__file__).parents[2]
PLACE = ROOT / ".pytest_cache" / "mutants"
MOST_SURVIVORS = 0.05
# What pytest's exit codes mean to mutmut; None is a mutant that has not been tried yet
KILLED, NOT_TRIED = {1, 3, 36, 152, -24, 24, 255, -9, -11}, None


@dataclass(frozen=True)
class Subject:
    """Files that decide, and the fast tests that say what they should decide."""

    files: tuple[str, ...]
    tests: tuple[str, ...]


SUBJECTS = {
    "machine": Subject(
        ("guards/circuits/machine.py",),
        (
            "guards/circuits/test_half_open.py",
            "guards/circuits/test_machine.py",
            "guards/circuits/test_machine_documents.py",
        ),
    ),
    "window": Subject(
        ("guards/circuits/window.py",), ("guards/circuits/test_window.py", "guards/circuits/test_machine.py")
    ),
    "policy": Subject(
        ("guards/retries/policy.py",),
        ("guards/retries/test_policy.py", "guards/retries/test_budget.py"),
    ),
    "schedule": Subject(
        ("graphs/plans/schedule.py",), ("graphs/plans/test_schedule.py", "graphs/plans/test_schedule_laws.py")
    ),
    "effects": Subject(
        ("durable/effects/model.py", "durable/batches/decisions.py"),
        (
            "durable/effects/test_model.py",
            "durable/effects/test_model_check.py",
            "durable/effects/test_model_documents.py",
            "durable/effects/test_decisions.py",
            "durable/effects/test_strategies.py",
        ),
    ),
    "conditions": Subject(
        ("graphs/conditions/*.py", "base/plain.py"),
        (
            "graphs/conditions/test_bounds_and_values.py",
            "graphs/conditions/test_build.py",
            "graphs/conditions/test_descriptions.py",
            "graphs/conditions/test_edge_cases.py",
            "graphs/conditions/test_evaluate.py",
            "graphs/conditions/test_forms.py",
            "graphs/conditions/test_paths.py",
            "graphs/conditions/test_paths_to_the_letter.py",
            "graphs/conditions/test_patterns.py",
            "graphs/conditions/test_plain.py",
            "graphs/conditions/test_reading_to_the_letter.py",
            "graphs/conditions/test_strictness.py",
        ),
    ),
}


def synchronise(source: Path, target: Path) -> bool:
    """Make the copy of a folder like it; whether anything was to be done."""
    changed = False
    wanted = {
        path.relative_to(source) for path in source.rglob("*") if path.is_file() and path.suffix != ".pyc"
    }
    for stale in [path for path in target.rglob("*") if path.is_file()]:
        if stale.suffix != ".pyc" and stale.relative_to(target) not in wanted:
            stale.unlink()
            changed = True
    for name in wanted:
        if not (target / name).exists() or not filecmp.cmp(source / name, target / name, shallow=False):
            (target / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(source / name, target / name)
            changed = True
    return changed


def prepared(name: str, subject: Subject) -> Path:
    """A folder of this subject's own with the package, its tests and mutmut's settings."""
    place = PLACE / name
    place.mkdir(parents=True, exist_ok=True)
    synchronise(ROOT / "prefect_resilience", place / "prefect_resilience")
    # all of them, as tests share helpers
    changed = synchronise(ROOT / "tests", place / "tests")
    settings = {
        "source_paths": ["prefect_resilience/"],
        "only_mutate": [f"prefect_resilience/{file}" for file in subject.files],
        "pytest_add_cli_args_test_selection": [f"tests/{test}" for test in subject.tests],
        "pytest_add_cli_args": ["--noconftest", "-p", "no:xdist", "-p", "no:cacheprovider"],
        "use_git_change_detection": False,
    }
    lines = "\n".join(f"{key} = {json.dumps(value)}" for key, value in settings.items())
    text = f"{(ROOT / 'pyproject.toml').read_text()}\n[tool.mutmut]\n{lines}\n"
    (place / "pyproject.toml").write_text(text)
    if changed:
        forget_survivors(place)
    return place


def verdicts(place: Path) -> dict[Path, dict[str, int | None]]:
    """By file: what became of each of its mutants."""
    return {
        path: json.loads(path.read_text())["exit_code_by_key"] for path in (place / "mutants").rglob("*.meta")
    }


def forget_survivors(place: Path) -> None:
    for path, codes in verdicts(place).items():
        told = json.loads(path.read_text())
        told["exit_code_by_key"] = {key: code if code in KILLED else NOT_TRIED for key, code in codes.items()}
        path.write_text(json.dumps(told, indent=4))


def run(name: str, workers: int) -> None:
    place = prepared(name, SUBJECTS[name])
    # CI: Hypothesis draws the same examples each time, so a verdict is no matter of luck
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PREFECT_API")}
    environment |= {"CI": "true", "PYTHONDONTWRITEBYTECODE": "1"}
    command = [Path(sys.executable).parent / "mutmut", "run", "--max-children", str(workers)]
    done = subprocess.run(command, cwd=place, env=environment, check=False)
    if done.returncode:
        raise SystemExit(f"mutmut stopped in {name} with exit code {done.returncode}: see above")


def report(names: list[str], *, show: bool) -> bool:
    """Print survivors of all, by file; whether each file is good enough and wholly tried."""
    good = True
    print(f"\n{'file':<40}{'mutants':>9}{'killed':>9}{'equivalent':>12}{'survived':>10}{'share':>8}")
    for name in names:
        for path, codes in sorted(verdicts(PLACE / name).items()):
            if not codes:
                continue
            file = str(path.relative_to(PLACE / name / "mutants" / "prefect_resilience"))[: -len(".meta")]
            alive = {key for key, code in codes.items() if code not in KILLED and code is not NOT_TRIED}
            changes = {key: shown(PLACE / name, key) for key in alive}
            equivalent = {key for key, change in changes.items() if means_the_same(key, change)}
            survived, untried = sorted(alive - equivalent), list(codes.values()).count(NOT_TRIED)
            share = len(survived) / len(codes)
            killed = len(codes) - len(alive) - untried
            rest = f"  {untried} not tried yet" if untried else ""
            print(
                f"{file:<40}{len(codes):>9}{killed:>9}{len(equivalent):>12}{len(survived):>10}{share:>8.1%}{rest}"
            )
            good = good and not untried and share <= MOST_SURVIVORS
            for key in survived:
                print(changes[key] if show else f"    {key}")
    return good


def shown(place: Path, key: str) -> str:
    command = [Path(sys.executable).parent / "mutmut", "show", key]
    return subprocess.run(command, cwd=place, capture_output=True, text=True, check=False).stdout


def main() -> None:
    words = argparse.ArgumentParser(description="Would the tests see a wrong decision?")
    words.add_argument("subjects", nargs="*", help=f"of {', '.join(SUBJECTS)}; all if none is named")
    words.add_argument("--workers", type=int, default=os.cpu_count() or 2)
    words.add_argument("--report", action="store_true", help="run nothing, tell what is known")
    words.add_argument("--show", action="store_true", help="print the change that each survivor is")
    asked = words.parse_args()
    names = asked.subjects or list(SUBJECTS)
    if unknown := set(names) - set(SUBJECTS):
        words.error(f"{sorted(unknown)} are no subjects: write some of {', '.join(SUBJECTS)}")
    for name in names if not asked.report else []:
        run(name, asked.workers)
    raise SystemExit(0 if report(names, show=asked.show) else 1)


if __name__ == "__main__":
    main()
