"""`adopt`: what a project's plain Prefect tasks would be as resilient tasks."""

from __future__ import annotations

import difflib
import io
import tokenize
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Annotated

from cyclopts import Parameter
from prefect.settings import get_current_settings
from pydantic import BaseModel
from rich.console import RenderableType
from rich.text import Text

from prefect_resilience.base.policy import nearest_file
from prefect_resilience.base.text import one_line, plural
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.operations.adoption import adopt as adopt_text
from prefect_resilience.operations.adoption.dangers import Danger, TaskCalls, effect_of
from prefect_resilience.operations.adoption.plain_tasks import PlainTask
from prefect_resilience.operations.cli import look
from prefect_resilience.operations.cli.options import Flag, Json
from prefect_resilience.operations.users_code import python_files

UNSEEN = (
    "Not seen: writes in other files and in libraries, SQL that is put together in a run, and functions that "
    "are chosen in a run."
)
UNSEEN_MEND = "Read them yourself: if one writes, give the task an effect."


class AdoptedTask(BaseModel):
    """A task: its settings that stay, a policy that it could have, and why it is left as it is, if it is.

    unseen: calls whose effect only a run can show, with their lines.
    """

    line: int
    name: str
    kept: dict[str, str]
    could_be: str
    left: str
    unseen: list[str]


class AdoptedFile(BaseModel):
    """What becomes of one file; `trouble` says why it cannot be read."""

    file: str
    diff: str = ""
    tasks: list[AdoptedTask] = []
    dangers: list[Danger] = []
    trouble: str = ""
    written: bool = False


def adopt(
    *paths: Path,
    write: Annotated[Flag, Parameter(help="Change the files. By default nothing is changed.")] = False,
    json: Json = False,
) -> int:
    """Show a diff that turns the plain Prefect tasks of a project into resilient tasks.

    Every task keeps its own retries, delays and timeouts. Below the diff: a policy that each task could have,
    dangers in its code and in the functions of its file that it uses, and the calls that cannot be judged.
    Nothing is imported or executed.

    Example: prefect-resilience adopt flows/ scripts/nightly.py

    Args:
        paths: Folders and files.
    """
    if not paths:
        raise ConfigurationError("name the folders or files to read, as in `adopt flows/`")
    for path in paths:
        if not path.exists():
            raise ConfigurationError(f"there is no {path}{nearest_file(path, ('.py',))}")
    by_default = bool(get_current_settings().tasks.default_retries)
    sources = dict.fromkeys(file for path in paths for file in python_files(path))
    files = [adopted for file in sources if (adopted := _adopt(file, by_default, write=write)) is not None]
    return look.answer(files, *_parts(files), json=json)


def _adopt(file: Path, retried_by_default: bool, *, write: bool) -> AdoptedFile | None:
    """What becomes of a file; None if it has no plain task. Raises ConfigurationError."""
    try:
        raw = file.read_bytes()
        encoding, _ = tokenize.detect_encoding(io.BytesIO(raw).readline)
        text = raw.decode(encoding)
        adoption = adopt_text(text, retried_by_default=retried_by_default, is_local=partial(_is_beside, file))
    except (OSError, SyntaxError, ValueError) as error:
        return AdoptedFile(file=str(file), trouble=one_line(error))
    if not adoption.tasks:
        return None
    diff = _diff(str(file), text, adoption.text)
    if write and diff:
        try:
            file.write_bytes(adoption.text.encode(encoding))
        except OSError as error:
            raise ConfigurationError(f"{file} cannot be written: {one_line(error)}") from None
    tasks = [_task(task, adoption.calls.get(task, TaskCalls())) for task in adoption.tasks]
    is_written = write and bool(diff)
    return AdoptedFile(file=str(file), diff=diff, tasks=tasks, dangers=adoption.dangers, written=is_written)


def _is_beside(file: Path, origin: str) -> bool:
    """Whether a module lies in the project: beside the file, or in a folder above it up to this one."""
    root = origin.partition(".")[0]
    folders = [file.parent, *(folder for folder in file.parents if folder.is_relative_to(Path()))]
    return not root or any(
        (folder / f"{root}.py").is_file() or (folder / root).is_dir() for folder in folders
    )


def _diff(file: str, before: str, after: str) -> str:
    old, new, name = before.splitlines(keepends=True), after.splitlines(keepends=True), file.lstrip("/")
    return "".join(difflib.unified_diff(old, new, f"a/{name}", f"b/{name}", n=1))


def _task(task: PlainTask, calls: TaskCalls) -> AdoptedTask:
    could_be = "" if task.unread else task.policy
    if could_be and calls.writes:
        could_be += f", {effect_of(task)}"
    return AdoptedTask(
        line=task.line,
        name=task.name,
        kept=task.settings,
        could_be=could_be,
        left=task.unread,
        unseen=[f"line {item.line}: {item.call}, {item.why}" for item in sorted(set(calls.unseen))],
    )


def _parts(files: list[AdoptedFile]) -> Iterator[RenderableType]:
    for item in files:
        if item.diff:
            yield Text("\n".join(map(_visible, item.diff.splitlines())))
    tasks = [(item.file, task) for item in files for task in item.tasks]
    if tasks:
        yield look.table(TASKS, tasks)
    for item in files:
        if item.trouble:
            yield f"{item.file}: cannot be read: {item.trouble}"
        for danger in item.dangers:
            where = f"{item.file}:{danger.line}" + (f", in {danger.task}" if danger.task else "")
            yield look.finding("wrong", where, danger.says, danger.mend)
    for file, task in tasks:
        if task.unseen:
            says = f"not judged: {'; '.join(task.unseen)}"
            yield look.finding("note", f"{file}, in {task.name}", says, UNSEEN_MEND)
    yield _count_line(files)
    if tasks:
        yield UNSEEN


def _visible(line: str) -> str:
    return "".join(letter if letter.isprintable() or letter == "\t" else " " for letter in line).rstrip()


TASKS: look.Columns = {
    "task": lambda row: row[1].name,
    "place": lambda row: f"{row[0]}:{row[1].line}",
    "keeps": lambda row: ", ".join(map("=".join, row[1].kept.items())) or "no retries",
    "could have": lambda row: row[1].left or row[1].could_be,
}
"""The tasks, each with its file."""


def _count_line(files: list[AdoptedFile]) -> str:
    tasks = [task for item in files for task in item.tasks]
    if not tasks:
        return "No plain Prefect tasks found."
    unchanged, written = sum(bool(task.left) for task in tasks), any(item.written for item in files)
    changed = len(tasks) - unchanged
    dangers = plural(sum(len(item.dangers) for item in files), "danger")
    rest = f", {unchanged} left unchanged" if unchanged else ""
    end = "" if written or not changed else "; nothing was changed: add --write to change the files"
    verb = "became" if written else "would become"
    return f"{plural(changed, 'task')} {verb} resilient{rest}; {dangers}{end}"
