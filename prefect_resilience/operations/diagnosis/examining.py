"""`examine`: runs every check, except the ones that have nothing to check."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import chain
from pathlib import Path
from types import ModuleType

from prefect.client.orchestration import get_client
from prefect.settings import get_current_settings

from prefect_resilience.base.policy import nearest_file
from prefect_resilience.base.text import one_line
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.operations.diagnosis import environment, project, server
from prefect_resilience.operations.diagnosis.findings import Diagnosis, DiagnosisFinding, finding
from prefect_resilience.operations.importing import imported
from prefect_resilience.operations.sources import python_files

Check = Callable[[], Iterable[DiagnosisFinding]]


def examine(targets: Iterable[str] = ()) -> Diagnosis:
    """Check this machine, the configured server, and the named targets.

    Args:
        targets: Folders are only read, not run. Files, modules and entrypoints ("flows/etl.py:daily",
            "my_team.flows") are imported as well.

    Raises ConfigurationError for a target that is missing or cannot be imported.
    """
    files, modules = _targets(targets)
    subjects = [subject for module in modules for subject in project.subjects_of(module)]
    policies = [policy for file in files for policy in project.named_policies(file)]
    findings: dict[str, list[DiagnosisFinding]] = {}
    _run(findings, environment.CHECKS)
    if files:
        _run(findings, {"code": lambda: [one for file in files for one in project.look_at(file)]})
    if subjects:
        _run(findings, {name: partial(check, subjects) for name, check in project.CHECKS.items()})
    url = get_current_settings().api.url
    if url is None:
        _run(findings, {"server": lambda: [finding("server.none", "PREFECT_API_URL")]})
    else:
        blocks = {"blocks": partial(project.blocks, subjects, policies)} if subjects or policies else {}
        try:
            with get_client(sync_client=True) as client:
                client.hello().raise_for_status()
                _run(
                    findings, {name: partial(check, client) for name, check in server.CHECKS.items()} | blocks
                )
        except Exception as error:  # noqa: BLE001 - any error of an unavailable API
            why = one_line(error)
            _run(findings, {"server": lambda: [finding("server.unavailable", str(url), error=why)]})
    unique: dict[tuple[str, str], DiagnosisFinding] = {}
    for one in chain.from_iterable(findings.values()):
        unique.setdefault((one.check, one.where), one)
    return Diagnosis(checks=tuple(findings), findings=tuple(unique.values()))


def _run(findings: dict[str, list[DiagnosisFinding]], checks: Mapping[str, Check]) -> None:
    """Add the findings of each check under its name."""
    for name, check in checks.items():
        try:
            results = list(check())
        except Exception as error:  # noqa: BLE001 - a failed check is a finding; the other checks still run
            failed = finding("doctor.failed", name, error=one_line(error))
            results = [failed.model_copy(update={"check": name})]
        findings.setdefault(name, []).extend(results)


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
        module = imported(name, repr(target), prefix="examined_")
        modules.append(module)
        if module.__file__ is not None:
            files[Path(module.__file__).resolve()] = None
    return list(files), modules
