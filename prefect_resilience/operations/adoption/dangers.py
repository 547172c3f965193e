"""What is dangerous in the code of tasks, above all in tasks that are repeated.

A call that changes something elsewhere counts in the task, and in functions of its file that it uses.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from prefect_resilience.operations.adoption.plain_tasks import Function, PlainTask
from prefect_resilience.operations.users_code import is_constant, origin_of

REPEATING = {"tenacity", "stamina", "backoff", "retrying", "retry", "retry2"}
"""Libraries that repeat calls."""
SDKS = {"openai": "twice", "anthropic": "twice", "groq": "twice", "mistralai": "by its own rules"}
CLIENT = ("Client", "OpenAI", "Anthropic", "Bedrock", "Vertex", "Groq", "Mistral")


SENDING = frozenset(
    {
        *("post", "patch", "sendmail", "send_message", "send_email", "send_raw_email", "publish"),
        *("basic_publish", "chat_postMessage", "invoke_async", "put_record", "put_records", "produce"),
        *("insert_one", "insert_many", "insert_rows", "insert_rows_json", "insert_all", "bulk_create"),
        *("load_table_from_dataframe", "copy_expert", "copy_from", "copy_records_to_table", "write_pandas"),
        *("bulk_save_objects", "bulk_insert_mappings", "add_all", "xadd", "lpush", "rpush", "incr", "incrby"),
    }
)
"""Methods that change something elsewhere each time they are called."""
APPENDING = {
    *(("if_exists", "append"), ("if_table_exists", "append"), ("mode", "append"), ("mode", "a")),
    ("write_disposition", "WRITE_APPEND"),
}
"""Options with which a repeated call adds its rows or lines again."""
WRITING_SQL = re.compile(
    r"(?:\s|--[^\n]*\n|/\*.*?\*/)*(?:with\b.*)?\b(?:insert|update|delete|merge|replace|upsert|copy|call)\b",
    re.IGNORECASE | re.DOTALL,
)
TAKING_SQL = ("execute", "executemany", "text", "execute_many", "fetch", "sql", "raw")
APPEND_MODE = re.compile(r"a[bt+]*")
STATEMENTS = ("insert", "update", "delete")
OWNED = {
    "add": re.compile(r"sess(ion|\b)|\bdb$", re.IGNORECASE),
    "commit": re.compile(""),
    "create": re.compile(r"\bobjects$"),
    "send": re.compile("producer", re.IGNORECASE),
}
"""Methods that write if their object has such a name: a session, a manager of Django, a producer of Kafka."""
SESSION = OWNED["add"]


class Unseen(NamedTuple):
    """A call whose effect only a run can show, and why."""

    line: int
    call: str
    why: str


@dataclass
class TaskCalls:
    """What a task calls, itself and by helpers. `writes`: each call with the helper's name, or ""."""

    writes: list[tuple[ast.Call, str]] = field(default_factory=list[tuple[ast.Call, str]])
    unseen: list[Unseen] = field(default_factory=list[Unseen])
    nodes: list[ast.AST] = field(default_factory=list[ast.AST])


class ModuleCode:
    """The functions, constants and sessions of a file. `is_local`: whether a module is of the project."""

    def __init__(self, tree: ast.Module, names: dict[str, str], is_local: Callable[[str], bool]) -> None:
        self.names = names
        self.is_local = is_local
        self.functions: dict[str, Function] = {}
        self.methods: dict[str, Function] = {}
        self.constants: dict[str, ast.expr] = {}
        self.sessions: set[str] = set()
        for node in ast.walk(tree):
            self._learn(node)
        for name in self.methods:
            self.functions.pop(name, None)

    def _learn(self, node: ast.AST) -> None:
        if isinstance(node, Function):
            self.functions[node.name] = node
        elif isinstance(node, ast.ClassDef):
            self.methods |= {inner.name: inner for inner in node.body if isinstance(inner, Function)}
        elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Name):
            self.constants[node.targets[0].id] = node.value
            self._bind(node.targets[0], node.value)
        elif isinstance(node, ast.withitem):
            self._bind(node.optional_vars, node.context_expr)
        elif isinstance(node, ast.arg) and node.annotation is not None:
            self._bind(ast.Name(node.arg), node.annotation)

    def _bind(self, target: ast.expr | None, value: ast.expr) -> None:
        """Remember the name of a database session, as in `with Session(engine) as s`."""
        maker = value.func if isinstance(value, ast.Call) else value
        is_http = origin_of(maker, self.names).startswith(("requests", "aiohttp"))
        if isinstance(target, ast.Name) and SESSION.search(ast.unparse(maker)) and not is_http:
            self.sessions.add(target.id)

    def calls_of(self, task: Function) -> TaskCalls:
        """What the task calls, itself and by functions of this file."""
        calls, commits = TaskCalls(), list[tuple[ast.Call, str]]()
        reached: dict[str, Function] = {"": task}
        waiting = [""]
        while waiting:
            helper = waiting.pop()
            for node in ast.walk(reached[helper]):
                calls.nodes.append(node)
                for name, function in self._used(node):
                    if function not in reached.values():
                        reached[name] = function
                        waiting.append(name)
                if isinstance(node, ast.Call) and self.writes(node):
                    (commits if _name_of(node) == "commit" else calls.writes).append((node, helper))
                elif isinstance(node, ast.Call):
                    calls.unseen += self._unseen(node)
        # A commit without a write that was seen is the write.
        calls.writes = calls.writes or commits
        return calls

    def _used(self, node: ast.AST) -> Iterator[tuple[str, Function]]:
        if isinstance(node, ast.Name) and node.id in self.functions:
            yield node.id, self.functions[node.id]
        elif isinstance(node, ast.Attribute) and not origin_of(node, self.names):
            yield from ((name, method) for name, method in self.methods.items() if name == node.attr)

    def writes(self, node: ast.Call) -> bool:
        """Whether this call changes something elsewhere each time."""
        origin = origin_of(node.func, self.names)
        is_bare = isinstance(node.func, ast.Name)
        name = origin.rpartition(".")[2] or _name_of(node)
        if is_bare and not origin and name != "open":
            return False
        first = self._text(node.args[0]) if node.args else ""
        options = {keyword.arg: self._text(keyword.value) for keyword in node.keywords}
        verb = (options.get("method") or first).upper()
        return (
            name in SENDING
            or not APPENDING.isdisjoint(options.items())
            or (name in ("request", "stream", "urlopen", "Request") and verb in ("POST", "PATCH"))
            or (name in TAKING_SQL and WRITING_SQL.match(first) is not None)
            or (
                name == "open"
                and any(APPEND_MODE.fullmatch(self._text(mode)) for mode in node.args[is_bare:][:1])
            )
            or (name == "mode" and first == "append")
            or (name in STATEMENTS and origin.startswith("sqlalchemy"))
            or (name == "insert" and not origin and len(node.args) < 2)
            or (name in ("urlopen", "Request") and ("data" in options or len(node.args) > 1))
            or (not is_bare and self._is_of_a_kind(node.func, name))
        )

    def _is_of_a_kind(self, method: ast.expr, name: str) -> bool:
        owner = ast.unparse(method).rpartition(".")[0]
        is_session = name == "add" and owner in self.sessions
        return is_session or (name in OWNED and OWNED[name].search(owner) is not None)

    def _text(self, node: ast.expr | None) -> str:
        """The text of a literal, an f-string, or a constant of the file."""
        if isinstance(node, ast.Name) and node.id in self.constants:
            node = self.constants[node.id]
        if isinstance(node, ast.JoinedStr):
            return "".join(self._text(part) or " x " for part in node.values)
        if isinstance(node, ast.BinOp):
            return self._text(node.left)
        return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else ""

    def _unseen(self, node: ast.Call) -> Iterator[Unseen]:
        origin = origin_of(node.func, self.names)
        if origin and self.is_local(origin):
            yield Unseen(node.lineno, f"{ast.unparse(node.func)}()", "it is in another file")
        elif _name_of(node) in ("execute", "executemany") and node.args and not self._is_known(node.args[0]):
            yield Unseen(node.lineno, f"{ast.unparse(node.func)}()", "its SQL is known only in a run")

    def _is_known(self, sql: ast.expr) -> bool:
        value = self.constants.get(sql.id) if isinstance(sql, ast.Name) else sql
        return bool(self._text(sql)) or isinstance(value, ast.Call)


def _name_of(node: ast.Call) -> str:
    return node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")


@dataclass(frozen=True, order=True)
class Danger:
    """One dangerous place. `task` is "" for code outside of tasks."""

    line: int
    task: str
    says: str
    mend: str


def dangers_in(
    tree: ast.Module, names: dict[str, str], tasks: list[PlainTask], calls: dict[PlainTask, TaskCalls]
) -> list[Danger]:
    """Everything dangerous in a file's retried tasks, and in the clients that they may use, by line."""
    dangers: set[Danger] = set()
    for task, called in calls.items():
        for node in called.nodes if task.retried else ():
            dangers.update(_repeated_inside(node, names, task.name))
        if task.retried:
            dangers.update(_danger_of(call, helper, task) for call, helper in called.writes)
    if any(task.retried for task in tasks):
        inside = {id(node) for called in calls.values() for node in called.nodes}
        for node in ast.walk(tree):
            if id(node) not in inside:
                dangers.update(_repeated_inside(node, names, ""))
    return sorted(dangers)


def _danger_of(call: ast.Call, helper: str, task: PlainTask) -> Danger:
    where = f" in {helper}()" if helper else ""
    says = f"each retry repeats {ast.unparse(call.func)}(){where}, even if only the response was lost"
    mend = f"Write {effect_of(task)}: the call is made once, and not repeated if its outcome is unknown."
    return Danger(call.lineno, task.name, says, mend)


def effect_of(task: PlainTask) -> str:
    """The option that declares the task's effect, with its first parameter as the key."""
    parameters = task.function.args.args if task.function else []
    key = f"{task.name}:{{{parameters[0].arg}}}" if parameters else task.name
    return f'effect=Effect(key="{key}")'


def _repeated_inside(node: ast.AST, names: dict[str, str], task: str) -> Iterator[Danger]:
    """Calls that are repeated by a library or an SDK inside of what the task's retries repeat."""
    if not isinstance(node, ast.Call):
        return
    origin = origin_of(node.func, names)
    root, _, name = origin.partition(".")
    written = {keyword.arg: keyword.value for keyword in node.keywords}
    if root in REPEATING:
        says = f"{ast.unparse(node.func)}() retries inside the task's retries, so that attempts multiply"
        yield Danger(
            node.lineno, task, says, "Keep one of the two. The task's retries are visible in the UI."
        )
    elif root in SDKS and name.endswith(CLIENT) and not is_constant(written.get("max_retries"), 0):
        says = f"{name.rpartition('.')[2]}() retries calls {SDKS[root]}, in addition to the task's retries"
        yield Danger(node.lineno, task, says, "Write max_retries=0.")
    elif origin.endswith(("HTTPAdapter", "HTTPTransport")):
        option = "retries" if origin.endswith("HTTPTransport") else "max_retries"
        if option in written and not is_constant(written[option], 0):
            says = f"{option}={ast.unparse(written[option])} retries calls in addition to the task's retries"
            yield Danger(node.lineno, task, says, f"Leave {option} out.")
