"""`--input` and `--inputs`: what a plan is given from a command line."""

from __future__ import annotations

import importlib
import importlib.util
import json
import re
import sys
import traceback
from collections.abc import Iterable
from contextlib import AbstractContextManager, redirect_stdout
from pathlib import Path
from types import ModuleType
from typing import Any, cast

from prefect_resilience.base.policy import closest, nearest, nearest_file
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.graphs.plans.model import Plan
from prefect_resilience.operations.cli.look import printable

# In a template or in a condition's path, as it stands in JSON: inputs.drug, inputs["drug"]
_LOOKED_AT = re.compile(r"""\binputs(?:\.|\[\\?["'])(\w+)""")


def read_inputs(pairs: Iterable[str], text: str | None) -> dict[str, Any]:
    """The inputs of `--inputs JSON` and, over them, those of every `--input name=value`.

    A value that reads as JSON is meant so (3, true, [1, 2], "3"); anything else is text. Raises
    ConfigurationError for what is no pair, written twice, or no JSON object.
    """
    inputs = _object(text) if text is not None else {}
    written: set[str] = set()
    for pair in pairs:
        name, sign, value = pair.partition("=")
        name = name.strip()
        if not sign or not name:
            raise ConfigurationError(f"--input {pair!r} is no name=value, as in --input drug=aspirin")
        if name in written:
            raise ConfigurationError(f"--input {name}=... is written twice: name each input once")
        written.add(name)
        inputs[name] = _value(value)
    return inputs


def check_names(inputs: Iterable[str], plan: Plan) -> None:
    """Raise ConfigurationError for an input that the plan neither declares nor looks at."""
    unknown = [name for name in inputs if name not in plan.inputs]
    if not unknown:
        return
    looked_at = set(_LOOKED_AT.findall(plan.model_dump_json()))
    for name in unknown:
        if name not in looked_at:
            known = looked_at | set(plan.inputs)
            raise ConfigurationError(
                f"the plan has no input {name!r}{nearest(name, known) if known else ', nor any other'}"
            )


def _object(text: str) -> dict[str, Any]:
    try:
        read = _json(text)
    except ValueError as error:
        raise ConfigurationError(
            f"""--inputs is no JSON ({error}): write it as in --inputs '{{"drug": "aspirin"}}'"""
        ) from None
    if not isinstance(read, dict):
        raise ConfigurationError(
            f"""--inputs must be a JSON object, as in '{{"drug": "aspirin"}}', not {type(read).__name__}"""
        )
    return cast("dict[str, Any]", read)


def _value(text: str) -> Any:
    try:
        return _json(text)
    except ValueError:
        return text


def _json(text: str) -> Any:
    try:
        return json.loads(text, parse_constant=_no_constant)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


def _no_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON")


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
