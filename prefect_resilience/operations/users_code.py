"""Users' code: modules that are imported by a dotted name or a path, and source files that are only read."""

from __future__ import annotations

import ast
import importlib
import importlib.util
import os
import pkgutil
import sys
import traceback
from collections.abc import Iterator
from contextlib import AbstractContextManager, redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any

from prefect_resilience.base.policy import closest, nearest_file
from prefect_resilience.base.text import one_line
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.errors.secrets.redact import redact


def import_from_here() -> None:
    """Put the current folder on the import path; an installed command does not do this by itself."""
    if os.getcwd() not in sys.path:
        sys.path.insert(0, os.getcwd())


def output_of_others() -> AbstractContextManager[Any]:
    """Send the output of users' code to stderr: stdout is for the answer of a command."""
    return redirect_stdout(sys.stderr)


def load_module(name: str, subject: str, prefix: str = "") -> ModuleType:
    """Import a module: a dotted name, also of the current folder, or the path of a .py file.

    Each error begins with `subject`. `prefix` is put before the name of a module that is a file. Raises
    ConfigurationError if a module cannot be imported, with the import that failed and its place.
    """
    import_from_here()
    is_file = name.endswith(".py") or "/" in name
    try:
        with output_of_others():
            return _import_file(name, subject, prefix) if is_file else importlib.import_module(name)
    except ConfigurationError:
        raise
    except (Exception, SystemExit) as error:  # noqa: BLE001 - a user's module
        not_found = isinstance(error, ModuleNotFoundError) and not is_file
        why = _not_found(name, error) if not_found else _broken(error)
        raise ConfigurationError(f"{subject}: {why}") from None


def _import_file(name: str, subject: str, prefix: str) -> ModuleType:
    path = Path(name)
    if not path.is_file():
        raise ConfigurationError(f"{subject}: there is no such file{nearest_file(path, ('.py',))}")
    path = path.resolve()
    # Modules in the same folder can be imported, as when Python runs the file as a script.
    if str(path.parent) not in sys.path:
        sys.path.insert(1, str(path.parent))
    module_name = prefix + path.stem
    if (loaded := sys.modules.get(module_name)) is not None:
        if getattr(loaded, "__file__", None) == str(path):
            return loaded
        raise ConfigurationError(f"{subject}: a module {module_name!r} is already loaded: rename the file")
    spec = importlib.util.spec_from_file_location(module_name, path)
    if spec is None or spec.loader is None:
        raise ConfigurationError(
            f"{subject} is not a Python file: write a module, as in my_team.actions, or a .py file"
        )
    module = importlib.util.module_from_spec(spec)
    # Registered before it is executed: dataclasses and pickle look modules up in sys.modules.
    sys.modules[module_name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[module_name]
        raise
    return module


def _not_found(name: str, error: BaseException) -> str:
    """The error message: the module itself is missing, or a module that it imports."""
    missing = getattr(error, "name", None) or ""
    if not missing or not f"{name}.".startswith(f"{missing}."):
        return _broken(error)
    parent, _, last = missing.rpartition(".")
    folders = getattr(sys.modules.get(parent), "__path__", [os.getcwd()])
    near = closest(last, sorted(module.name for module in pkgutil.iter_modules(folders)))
    hint = "" if near is None else f"; did you mean {near!r}?"
    if parent:
        return f"the package {parent!r} has no module {last!r}{hint}"
    hint = hint or "; write a file with its ending .py"
    return f"there is no module {missing!r}, installed or in {Path.cwd()}{hint}"


def _broken(error: BaseException) -> str:
    """The error of a failed import, and the line that caused it."""
    if isinstance(error, SyntaxError):
        return f"it is not valid Python: {error.msg} (line {error.lineno} of {error.filename})"
    frames = traceback.extract_tb(error.__traceback__)
    own = [frame for frame in frames if "importlib" not in frame.filename and frame.filename != __file__]
    place = f" (line {own[-1].lineno} of {own[-1].filename})" if own else ""
    return f"it cannot be imported: {redact(f'{type(error).__name__}: {one_line(error)}')}{place}"


# -- source files, and the names in them: nothing is imported or executed

SKIPPED = {".git", ".venv", "venv", "node_modules", "__pycache__", "site-packages"}


def python_files(path: Path) -> Iterator[Path]:
    """The file itself, or the Python files of a folder without installed packages."""
    if path.is_file():
        yield path
        return
    for file in sorted(path.rglob("*.py")):
        if not SKIPPED.intersection(file.relative_to(path).parts):
            yield file


def origins(tree: ast.AST) -> dict[str, str]:
    """The dotted origin of each imported name of the file; one from `from .a import b` begins with dots."""
    names: dict[str, str] = {}
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom):
            module = "." * node.level + (f"{node.module}." if node.module else "")
            names |= {alias.asname or alias.name: module + alias.name for alias in node.names}
        elif isinstance(node, ast.Import):
            for alias in node.names:
                root = alias.name.partition(".")[0]
                names[alias.asname or root] = alias.name if alias.asname else root
    return names


def origin_of(node: ast.expr, names: dict[str, str]) -> str:
    """The dotted origin of a name or an attribute; "" for other expressions."""
    if isinstance(node, ast.Name):
        return names.get(node.id, "")
    if isinstance(node, ast.Attribute):
        base = origin_of(node.value, names)
        return f"{base}.{node.attr}" if base else ""
    return ""


def is_constant(node: ast.AST | None, value: object) -> bool:
    return isinstance(node, ast.Constant) and node.value is value
