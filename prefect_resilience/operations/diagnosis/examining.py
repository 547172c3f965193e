"""`examine`: runs every check, except the ones that have nothing to check."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from types import ModuleType
from typing import Any

from prefect.client.orchestration import get_client
from prefect.settings import get_current_settings

from prefect_resilience.base.policy import nearest_file
from prefect_resilience.base.text import one_line
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.operations.diagnosis import environment, project, server
from prefect_resilience.operations.diagnosis.findings import Diagnosis, DiagnosisFinding, wrong
from prefect_resilience.operations.importing import imported
from prefect_resilience.operations.sources import python_files


def examine(targets: Iterable[str] = ()) -> Diagnosis:
    """Check this machine, the configured server, and the named targets.

    Args:
        targets: Folders are only read, not run. Files, modules and entrypoints ("flows/etl.py:daily",
            "my_team.flows") are imported as well.

    Raises ConfigurationError for a target that is missing or cannot be imported.
    """
    files, modules = _found(targets)
    subjects = [subject for module in modules for subject in project.subjects_of(module)]
    examined = _Examination()
    examined.by("versions", environment.versions)
    examined.by("store", environment.store)
    examined.by("circuits", environment.circuits)
    examined.by("leases", environment.leases)
    if files:
        examined.by("code", lambda: [one for file in files for one in project.look_at(file)])
    if subjects:
        examined.by("timeouts", lambda: project.timeouts(subjects))
        examined.by("results", lambda: project.results(subjects))
        examined.by("circuits", lambda: project.circuits(subjects))
    _ask_server(examined, subjects, [one for file in files for one in project.named_policies(file)])
    return Diagnosis(checks=tuple(examined.checks), findings=tuple(examined.findings))


class _Examination:
    """The checks so far and their findings, without duplicates."""

    def __init__(self) -> None:
        self.checks: list[str] = []
        self.findings: list[DiagnosisFinding] = []

    def by(self, name: str, check: Callable[[], Iterable[DiagnosisFinding]]) -> None:
        if name not in self.checks:
            self.checks.append(name)
        try:
            found = list(check())
        except Exception as error:  # noqa: BLE001 - a failed check is a finding; the other checks still run
            says = f"this check failed: {redact(one_line(error))}"
            mend = "Fix the cause, and run doctor again."
            found = [wrong(name, name, says, mend)]
        known = {(one.check, one.where) for one in self.findings}
        for one in found:
            if (one.check, one.where) not in known:
                known.add((one.check, one.where))
                self.findings.append(one)


def _ask_server(examined: _Examination, subjects: list[Any], named: list[project.NamedPolicy]) -> None:
    url = get_current_settings().api.url
    if url is None:
        says = "no Prefect server is configured: each run starts a temporary one, without automations"
        mend = "Start one with `prefect server start`, and set PREFECT_API_URL=http://127.0.0.1:4200/api"
        examined.by("server", lambda: [wrong("server", "PREFECT_API_URL", says, mend)])
        return
    try:
        with get_client(sync_client=True) as client:
            client.hello().raise_for_status()
            for name, check in server.CHECKS.items():
                examined.by(name, partial(check, client))
            if subjects or named:
                examined.by("blocks", lambda: project.blocks(subjects, named))
    except Exception as error:  # noqa: BLE001 - any error of an unavailable API
        says = f"the Prefect API is unavailable: {redact(one_line(error))}"
        mend = "Start the server, or set PREFECT_API_URL to its address."
        examined.by("server", lambda: [wrong("server", redact(str(url)), says, mend)])


# -- targets


def _found(targets: Iterable[str]) -> tuple[list[Path], list[ModuleType]]:
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
