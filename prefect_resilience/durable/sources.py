"""Where tasks and flows are defined, so that another process can find them."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any
from weakref import WeakValueDictionary

from prefect_resilience.base.naming import is_of_process
from prefect_resilience.durable.letters.kinds import DeadLetterError, attribute_at
from prefect_resilience.durable.letters.model import Source

# Tasks that no import finds, as in a function or a notebook. Only this process can find them.
_local: WeakValueDictionary[str, Any] = WeakValueDictionary()


def source_of(subject: Any) -> Source | None:
    """Where a task or flow is defined; None if its function has no module or name."""
    fn = getattr(subject, "fn", subject)
    module = sys.modules.get(getattr(fn, "__module__", "") or "")
    qualname = getattr(fn, "__qualname__", "")
    if module is None or not qualname:
        return None
    name = bound_name(module, subject, qualname, _same)
    source = Source(module=module.__name__, qualname=name or qualname, file=getattr(module, "__file__", None))
    if name is None:
        _local[f"{source}|{_key(subject)}"] = subject
    return source


def bound_name(
    module: ModuleType, subject: Any, qualname: str, same: Callable[[Any, Any], bool]
) -> str | None:
    """The name by which a module has `subject`; else its qualified name, if `same` is found there."""
    for name, value in list(vars(module).items()):
        if value is subject:
            return name
    return qualname if same(attribute_at(module, qualname), subject) else None


def _same(found: Any, subject: Any) -> bool:
    """Whether the task found is a variant of the subject."""
    return hasattr(found, "fn") and _key(found) == _key(subject)


def _key(subject: Any) -> str:
    return str(getattr(subject, "task_key", None) or getattr(subject, "name", ""))


class Finder:
    """Finds recorded tasks, flows and modules. `load_file` runs a Python file as a module, each file once."""

    def __init__(self, load_file: Callable[[str], ModuleType]) -> None:
        self._load_file = load_file
        self._loaded: dict[str, ModuleType] = {}

    def subject(self, source: Source | None, key: str) -> Any:
        """The task or flow. Raises DeadLetterError when it is not there."""
        if source is None:
            raise DeadLetterError("the place of its function was not recorded")
        if (local := _local.get(f"{source}|{key}")) is not None:
            return local
        if "<locals>" in source.qualname:
            raise DeadLetterError(
                f"{source} was defined in a function, so other processes cannot import it: "
                "define it at the top of its module"
            )
        try:
            module = self.module(source.module, source)
        except DeadLetterError:
            raise
        except Exception as error:
            raise DeadLetterError(
                f"{source} cannot be imported here ({error!r}): run this in the folder of its project"
            ) from error
        subject = attribute_at(module, source.qualname)
        if subject is None:
            raise DeadLetterError(
                f"{source.qualname} is not in {source.module}: restore it, or settle or purge the letter"
            )
        return subject

    def modules_of(self, source: Source | None) -> Callable[[str], ModuleType]:
        """A function that finds the modules of a letter's classes."""
        return lambda name: self.module(name, source)

    def module(self, name: str, source: Source | None) -> ModuleType:
        """A module by its name, or by its recorded file: for main modules and those that no import finds."""
        file = source.file if source is not None and source.module == name else None
        passing = is_of_process(name)
        loaded = sys.modules.get(name)
        if loaded is not None and (file is None or _is_at(loaded, file) or not passing):
            return loaded
        if passing:
            if file is None:
                raise DeadLetterError(f"{name} was another program, and its file was not recorded")
            return self._of_file(file)
        try:
            return importlib.import_module(name)
        except ImportError:
            if file is None:
                raise
            return self._of_file(file)

    def _of_file(self, file: str) -> ModuleType:
        for module in list(sys.modules.values()):
            if _is_at(module, file):
                return module
        path = _present(file)
        if path not in self._loaded:
            self._loaded[path] = self._load_file(path)
        return self._loaded[path]


def _is_at(module: ModuleType, file: str) -> bool:
    there = getattr(module, "__file__", None)
    return isinstance(there, str) and Path(there).absolute() == Path(file).absolute()


def _present(file: str) -> str:
    """The file. If its folder is gone, such as a worker's, the same path below the current folder."""
    path = Path(file)
    if path.is_file():
        return str(path)
    for start in range(1, len(path.parts)):
        candidate = Path(*path.parts[start:])
        if candidate.is_file():
            return str(candidate.absolute())
    raise DeadLetterError(f"file {file} not found here: run this in the folder of its project")
