"""`adopt`: what a project's plain Prefect tasks would be as resilient tasks."""

from __future__ import annotations

import ast
import difflib
import io
import tokenize
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from prefect.settings import get_current_settings
from pydantic import BaseModel, Field
from rich.console import RenderableType
from rich.text import Text

from prefect_resilience.base.policy import nearest_file
from prefect_resilience.base.text import one_line, plural
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.operations.adoption import adopt as adopt_text
from prefect_resilience.operations.adoption.dangers import Danger, effect_of, sends
from prefect_resilience.operations.adoption.reading import PlainTask
from prefect_resilience.operations.cli import look
from prefect_resilience.operations.cli.look import TEXT
from prefect_resilience.operations.cli.options import Flag, Json
from prefect_resilience.operations.sources import python_files


class AdoptedTask(BaseModel):
    """A task: its settings that stay, a policy that it could have, and why it is left as it is, if it is."""

    line: int
    name: str
    kept: dict[str, str]
    could_be: str
    left: str


class AdoptedFile(BaseModel):
    """What becomes of one file; `trouble` says why it cannot be read."""

    file: str
    diff: str = ""
    tasks: list[AdoptedTask] = []
    dangers: list[Danger] = []
    trouble: str = ""
    written: bool = False
    content: bytes = Field(default=b"", exclude=True, repr=False)


def adopt(
    path: Path,
    *,
    write: Annotated[Flag, Parameter(help="Change the files. By default nothing is changed.")] = False,
    json: Json = False,
) -> int:
    """Show a diff that turns the plain Prefect tasks of a project into resilient tasks.

    Every task keeps its own retries, delays and timeouts. Below the diff: a policy that each task could have,
    and dangers in its code. Nothing is imported or executed.

    Example: prefect-resilience adopt flows/

    Args:
        path: A folder, or one file.
    """
    if not path.exists():
        raise ConfigurationError(f"there is no {path}{nearest_file(path, ('.py',))}")
    by_default = bool(get_current_settings().tasks.default_retries)
    files = [one for file in python_files(path) if (one := _adopted(file, by_default)) is not None]
    for one in files if write else ():
        _write(one)
    return look.answer(files, *_shown(files), json=json)


def _adopted(file: Path, retried_by_default: bool) -> AdoptedFile | None:
    """What becomes of a file; None if it has no plain task."""
    try:
        raw = file.read_bytes()
        encoding, _ = tokenize.detect_encoding(io.BytesIO(raw).readline)
        text = raw.decode(encoding)
        found = adopt_text(text, retried_by_default=retried_by_default)
    except (OSError, SyntaxError, ValueError) as error:
        return AdoptedFile(file=str(file), trouble=one_line(error))
    if not found.tasks:
        return None
    return AdoptedFile(
        file=str(file),
        diff=_diff(str(file), text, found.text),
        tasks=[_task(task) for task in found.tasks],
        dangers=found.dangers,
        content=found.text.encode(encoding),
    )


def _write(one: AdoptedFile) -> None:
    if not one.diff:
        return
    try:
        Path(one.file).write_bytes(one.content)
    except OSError as error:
        raise ConfigurationError(f"{one.file} cannot be written: {one_line(error)}") from None
    one.written = True


def _diff(file: str, before: str, after: str) -> str:
    old, new, name = before.splitlines(keepends=True), after.splitlines(keepends=True), file.lstrip("/")
    return "".join(difflib.unified_diff(old, new, f"a/{name}", f"b/{name}", n=1))


def _task(task: PlainTask) -> AdoptedTask:
    could_be = "" if task.unread else task.policy
    if could_be and task.function and any(map(sends, ast.walk(task.function))):
        could_be += f", {effect_of(task)}"
    return AdoptedTask(
        line=task.line, name=task.name, kept=task.settings, could_be=could_be, left=task.unread
    )


def _shown(files: list[AdoptedFile]) -> Iterator[RenderableType]:
    for one in files:
        if one.diff:
            yield Text("\n".join(map(_visible, one.diff.splitlines())))
    tasks = [(one, task) for one in files for task in one.tasks]
    if tasks:
        columns = {"task": TEXT, "at": TEXT, "keeps": TEXT, "could have": TEXT}
        yield look.table(columns, (_row(one.file, task) for one, task in tasks))
    for one in files:
        if one.trouble:
            yield look.card([(f"{one.file}:", f"cannot be read: {one.trouble}")])
        for danger in one.dangers:
            yield _card(one.file, danger)
    yield _counted(files)


def _visible(line: str) -> str:
    return "".join(letter if letter.isprintable() or letter == "\t" else " " for letter in line).rstrip()


def _row(file: str, task: AdoptedTask) -> tuple[str, ...]:
    kept = ", ".join(f"{name}={value}" for name, value in task.kept.items()) or "no retries"
    return task.name, f"{file}:{task.line}", kept, task.left or task.could_be


def _card(file: str, danger: Danger) -> RenderableType:
    where = f"{file}:{danger.line}" + (f", in {danger.task}" if danger.task else "")
    return look.finding("wrong", where, danger.says, danger.mend)


def _counted(files: list[AdoptedFile]) -> str:
    tasks = [task for one in files for task in one.tasks]
    if not tasks:
        return "No plain Prefect tasks found."
    changed, left = sum(not task.left for task in tasks), sum(bool(task.left) for task in tasks)
    written = any(one.written for one in files)
    verb = "became" if written else "would become"
    found = plural(sum(len(one.dangers) for one in files), "danger")
    rest = f", {left} left unchanged" if left else ""
    end = "" if written or not changed else "; nothing was changed: add --write to change the files"
    return f"{plural(changed, 'task')} {verb} resilient{rest}; {found}{end}"
