"""`--actions`: the modules that are imported so that their `@action`s are known."""

from __future__ import annotations

import importlib
import importlib.util
import sys
import traceback
from collections.abc import Iterable
from contextlib import AbstractContextManager, redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any

from prefect_resilience.base.policy import closest, nearest, nearest_file
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.operations.cli.output import printable


def output_of_others() -> AbstractContextManager[Any]:
    """Have what actions print go to stderr: stdout is for what the command was asked for."""
    return redirect_stdout(sys.stderr)


def import_actions(modules: Iterable[str]) -> None:
    """Import each module: a dotted name, seen from the current folder, or the path of a .py file.

    Raises ConfigurationError for one that cannot be imported, and says which import failed and where.
    """
    # A console script's own folder is where Python looks first; people mean the one they are in.
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    with output_of_others():
        for name in modules:
            if name.endswith(".py") or "/" in name:
                _import_file(name)
            else:
                _import_module(name)


def _import_module(name: str) -> None:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise ConfigurationError(_not_found(name, error)) from None
    except ConfigurationError:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001 - somebody else's module
        raise ConfigurationError(f"--actions {name}: {_broken(error)}") from None


def _import_file(name: str) -> None:
    path = Path(name)
    if not path.is_file():
        raise ConfigurationError(f"--actions {name}: there is no such file{nearest_file(path, ('.py',))}")
    if path.suffix != ".py":
        raise ConfigurationError(
            f"--actions {name} is no Python file: name a module, as in my_team.actions, or a .py file"
        )
    # Its neighbours are imported as they are when it is run as a script.
    folder = str(path.resolve().parent)
    if folder not in sys.path:
        sys.path.insert(1, folder)
    try:
        _load(path.resolve())
    except ConfigurationError:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001 - somebody else's module
        raise ConfigurationError(f"--actions {name}: {_broken(error)}") from None


def _load(path: Path) -> ModuleType:
    known = sys.modules.get(path.stem)
    if known is not None:
        if getattr(known, "__file__", None) == str(path):
            return known
        raise ConfigurationError(
            f"--actions {path}: a module {path.stem!r} is loaded already from somewhere else; rename the file"
        )
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None:
        raise ConfigurationError(f"--actions {path} cannot be read as a Python file")
    module = importlib.util.module_from_spec(spec)
    # Under its name while it is executed: dataclasses and pickle look there.
    sys.modules[path.stem] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[path.stem]
        raise
    return module


def _not_found(name: str, error: ModuleNotFoundError) -> str:
    """Whether the module itself is missing, or one that it imports."""
    missing = error.name or ""
    if missing and (name == missing or name.startswith(f"{missing}.")):
        parent, _, last = missing.rpartition(".")
        if parent:
            return f"--actions {name}: the package {parent!r} has no module {last!r}{_near(parent, last)}"
        here = nearest_module(missing)
        return (
            f"--actions {name}: there is no module {missing!r}, neither installed nor in {Path.cwd()}"
            f"{here or '; a file is named with its .py'}"
        )
    return f"--actions {name}: {_broken(error)}"


def nearest_module(wrong: str) -> str:
    """`; did you mean 'flows'?`, of what is in the current folder; else nothing."""
    here = [path.stem for path in Path.cwd().iterdir() if path.suffix == ".py" or path.is_dir()]
    near = closest(wrong, sorted(here))
    return "" if near is None else f"; did you mean {near!r}?"


def _near(package: str, wrong: str) -> str:
    found = sys.modules.get(package)
    folders = [Path(folder) for folder in getattr(found, "__path__", [])]
    siblings = {path.stem for folder in folders for path in folder.glob("*.py") if path.stem != "__init__"}
    return nearest(wrong, siblings) if siblings else ""


def _broken(error: BaseException) -> str:
    """What was raised while a module was imported, and the line of it that asked for it."""
    if isinstance(error, SyntaxError):
        where = f"line {error.lineno} of {error.filename}"
        return f"it is no Python: {error.msg} ({where})"
    says = printable(f"{type(error).__name__}: {error}")
    frames = [
        frame
        for frame in traceback.extract_tb(error.__traceback__)
        if "importlib" not in frame.filename and frame.filename != __file__
    ]
    where = f" (line {frames[-1].lineno} of {frames[-1].filename})" if frames else ""
    return f"it cannot be imported: {says}{where}"
