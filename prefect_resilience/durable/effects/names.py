"""How keys name a function or a class: the same wherever it was cloned to, and however it was loaded."""

from __future__ import annotations

import ast
import inspect
import sys
from collections.abc import Callable
from functools import lru_cache, partial
from importlib.util import find_spec
from pathlib import Path, PurePath
from typing import Any, NamedTuple, cast

MOST_PACKAGES = 20


class CodeSource(NamedTuple):
    """Where a task's function stands: its dotted name, its module, and the file if there is one."""

    name: str = ""
    module: str = ""
    file: str = ""


NOWHERE = CodeSource()


def source_of(fn: Callable[..., Any]) -> CodeSource:
    """Where a function is defined. A body that was changed does not count, nor does the folder of a clone."""
    function = inspect.unwrap(fn)
    while isinstance(function, partial):
        function = inspect.unwrap(cast("Callable[..., Any]", function.func))
    name = getattr(function, "__qualname__", None) or type(function).__qualname__
    file = getattr(getattr(function, "__code__", None), "co_filename", "")
    module = module_name(getattr(function, "__module__", "") or "", file)
    return CodeSource(f"{module}.{name}" if module else name, module, file)


def task_name(fn: Callable[..., Any]) -> str:
    """The dotted name of a function."""
    return source_of(fn).name


def class_name(cls: type[Any]) -> str:
    """The dotted name of a class; those of the standard library's builtins bare."""
    if cls.__module__ == "builtins":
        return cls.__qualname__
    file = getattr(sys.modules.get(cls.__module__), "__file__", None) or ""
    return f"{module_name(cls.__module__, file)}.{cls.__qualname__}"


@lru_cache(maxsize=1_000)
def module_name(module: str, file: str) -> str:
    """The name of a module; of a script and of a file that Prefect loaded, what it would be imported by."""
    path = PurePath(file)
    by_path = module in ("", "__main__", path.stem) or module.startswith("__prefect_loader")
    if not by_path:
        return module
    if path.suffix != ".py" or "ipykernel" in file:
        return ""
    parts = [path.stem]
    folder = Path(file).parent
    while (folder / "__init__.py").is_file() and len(parts) < MOST_PACKAGES:
        parts.insert(0, folder.name)
        folder = folder.parent
    return ".".join(parts)


def is_gone(recorded: str, asker: CodeSource) -> bool:
    """Whether a task is no longer in the code, as far as the files say; False when nothing can tell.

    Nothing is imported for it: the sources are read, in which a lambda has no name.
    """
    if recorded.endswith("<lambda>"):
        return False
    for module, rest in _splits(recorded):
        file = asker.file if module == asker.module else _file_of(module)
        if file is None:
            continue
        defined = _defined_in(file)
        return defined is not None and rest not in defined
    return True


def _splits(name: str) -> list[tuple[str, str]]:
    """The ways to take a dotted name apart, the longest module first; a module ends before `<locals>`."""
    head = name.split(".<locals>", 1)[0].split(".")
    return [(".".join(head[:n]), name[len(".".join(head[:n])) + 1 :]) for n in range(len(head) - 1, 0, -1)]


def _file_of(module: str) -> str | None:
    loaded = getattr(sys.modules.get(module), "__file__", None)
    if loaded:
        return loaded
    for one in list(sys.modules.values()):
        file = getattr(one, "__file__", None)
        if (
            file
            and PurePath(file).stem == module.rpartition(".")[2]
            and module_name(one.__name__, file) == module
        ):
            return file
    top, *rest = module.split(".")
    try:
        spec = find_spec(top)
    except (ImportError, ValueError, AttributeError):
        return None
    if spec is None or not rest:
        return None if spec is None else spec.origin
    # find_spec would import the packages around a module.
    places = (Path(folder, *rest) for folder in spec.submodule_search_locations or ())
    files = (file for place in places for file in (place.with_suffix(".py"), place / "__init__.py"))
    return next((str(file) for file in files if file.is_file()), None)


def _defined_in(file: str) -> frozenset[str] | None:
    """The qualified names of all functions that a file defines; None where it cannot be read."""
    try:
        path = Path(file)
        return _names_in(path.read_text(encoding="utf-8"))
    except (OSError, SyntaxError, ValueError):
        return None


@lru_cache(maxsize=32)
def _names_in(text: str) -> frozenset[str]:
    found: set[str] = set()

    def walk(node: ast.AST, prefix: str) -> None:
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef):
                found.add(prefix + child.name)
                walk(child, f"{prefix}{child.name}.<locals>.")
            elif isinstance(child, ast.ClassDef):
                walk(child, f"{prefix}{child.name}.")
            else:
                walk(child, prefix)

    walk(ast.parse(text), "")
    return frozenset(found)
