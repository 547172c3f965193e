"""`doctor`: find the problems of a project, a fleet and a server, and how to fix them.

`examine` runs every check, except the ones that have nothing to check.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import contextmanager
from functools import cache, partial
from importlib.resources import files
from pathlib import Path
from types import ModuleType
from typing import Any, Literal

import yaml
from prefect.client.orchestration import SyncPrefectClient, get_client
from prefect.settings import get_current_settings
from pydantic import BaseModel

from prefect_resilience.base.policy import nearest_file
from prefect_resilience.base.text import one_line
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.errors.secrets.redact import redact, redact_data
from prefect_resilience.operations.users_code import load_module, python_files

Level = Literal["wrong", "note"]


class DiagnosisFinding(BaseModel, frozen=True):
    """One problem, and how to fix it.

    `check`: the name of the check. `where`: the place of the problem. `says`: the problem, in one sentence.
    `mend`: the fix, in one sentence. `level`: "wrong", or "note" if it may be intended.
    """

    check: str
    where: str
    says: str
    mend: str
    level: Level = "wrong"


class Diagnosis(BaseModel, frozen=True):
    """The findings of all checks. `checks`: the names of the checks that ran, in order."""

    checks: tuple[str, ...]
    findings: tuple[DiagnosisFinding, ...]

    @property
    def healthy(self) -> bool:
        """Whether nothing is wrong. Notes do not count."""
        return all(finding.level != "wrong" for finding in self.findings)


def finding(kind: str, where: str, level: Level | None = None, /, **words: object) -> DiagnosisFinding:
    """The finding of this kind in findings.yaml. `words`: values for its placeholders."""
    row = _table()[kind]
    words = redact_data(words)
    return DiagnosisFinding(
        check=kind.partition(".")[0],
        where=redact(where),
        says=row["says"].format(**words),
        mend=row["mend"].format(**words),
        level=level or row.get("level", "wrong"),
    )


@cache
def _table() -> dict[str, dict[str, Any]]:
    return yaml.safe_load(files(__name__).joinpath("findings.yaml").read_text("utf-8"))


# -- the checks

Check = tuple[str, Callable[[], Iterable[DiagnosisFinding]]]
"""A check with its name. Several may have one name."""


def examine(targets: Iterable[str] = ()) -> Diagnosis:
    """Check this machine, the configured server, and the named targets.

    Args:
        targets: Folders are only read, not run. Files, modules and entrypoints ("flows/etl.py:daily",
            "my_team.flows") are imported as well.

    Raises ConfigurationError for a target that is missing or cannot be imported.
    """
    files, modules = _targets(targets)
    with _api() as client:
        checks = [*_checks(files, modules, client)]
        findings = [result for name, check in checks for result in _results(name, check)]
    # Two checks may see one thing; the first one says it.
    unique = {(result.check, result.where): result for result in reversed(findings)}
    names = dict.fromkeys(name for name, _ in checks)
    return Diagnosis(checks=tuple(names), findings=tuple(reversed(unique.values())))


def _checks(
    files: list[Path], modules: list[ModuleType], client: SyncPrefectClient | DiagnosisFinding
) -> Iterator[Check]:
    """The checks that have something to check. `client`: a finding if there is no server."""
    from prefect_resilience.operations.diagnosis import environment, project  # they make findings

    subjects = [subject for module in modules for subject in project.subjects_of(module)]
    sources = [project.read_file(file) for file in files]
    policies = [policy for _, named in sources for policy in named]
    yield from environment.CHECKS.items()
    if files:
        yield "code", lambda: (result for findings, _ in sources for result in findings)
    if subjects:
        yield from ((name, partial(check, subjects)) for name, check in project.CHECKS.items())
    if isinstance(client, DiagnosisFinding):
        yield "server", lambda: [client]
        return
    yield from ((name, partial(check, client)) for name, check in environment.SERVER_CHECKS.items())
    if subjects or policies:
        yield "blocks", partial(project.blocks, subjects, policies)


@contextmanager
def _api() -> Generator[SyncPrefectClient | DiagnosisFinding]:
    """A client of the configured server, or the finding that there is none."""
    url = get_current_settings().api.url
    if url is None:
        yield finding("server.none", "PREFECT_API_URL")
        return
    with get_client(sync_client=True) as client:
        try:
            client.hello().raise_for_status()
            answer = client
        except Exception as error:  # noqa: BLE001 - any error of an unavailable API
            answer = finding("server.unavailable", url, error=one_line(error))
        yield answer


def _results(name: str, check: Callable[[], Iterable[DiagnosisFinding]]) -> list[DiagnosisFinding]:
    try:
        return list(check())
    except Exception as error:  # noqa: BLE001 - a failed check is a finding; the other checks still run
        failed = finding("doctor.failed", name, error=one_line(error))
        return [failed.model_copy(update={"check": name})]


def _targets(targets: Iterable[str]) -> tuple[list[Path], list[ModuleType]]:
    files: dict[Path, None] = {}
    modules: list[ModuleType] = []
    for target in targets:
        path = Path(target.rpartition(":")[0] if ".py:" in target else target)
        if path.is_dir():
            files |= dict.fromkeys(python_files(path.resolve()))
            continue
        if not path.is_file() and (path.suffix == ".py" or "/" in target):
            raise ConfigurationError(f"there is no file or folder {str(path)!r}{nearest_file(path, ('',))}")
        # A file is imported under another name, since a module of its name may be loaded already.
        name = str(path) if path.is_file() else target.partition(":")[0]
        module = load_module(name, repr(target), prefix="examined_")
        modules.append(module)
        if module.__file__ is not None:
            files[Path(module.__file__).resolve()] = None
    return list(files), modules
