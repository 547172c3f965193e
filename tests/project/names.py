"""How names in the package are formed: what `make house` counts of them."""

import ast
import re
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path

PARTICIPLE = re.compile(
    r"told|said|made|kept|known|found|given|taken|sent|left|held|begun|gone|done|shown|drawn|written|heard|seen"
    r"|meant|lost|met|put|set|cut|\w{3,}ed"
)
VAGUE = re.compile(
    r"ones?|found|known|told|said|made|here|kept|given|seen|asked|left|each|what|who|whose|which|others"
)
NAMED_ALIKE = frozenset({"__init__.py", "model.py", "policy.py"})
"""Files that many folders have, with the same meaning in each."""

Trees = Mapping[Path, ast.Module]


def functions(tree: ast.Module) -> Iterator[str]:
    """The names of functions and methods, without properties and dunders."""
    for node in ast.walk(tree):
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if is_function and not node.name.startswith("__") and not any(map(is_property, node.decorator_list)):
            yield node.name


def is_property(decorator: ast.expr) -> bool:
    return "property" in ast.unparse(decorator) or (
        isinstance(decorator, ast.Attribute) and decorator.attr in ("setter", "getter", "deleter")
    )


def begins_with_participle(name: str) -> bool:
    return PARTICIPLE.fullmatch(name.strip("_").partition("_")[0]) is not None


def assigned(tree: ast.Module) -> Iterator[str]:
    """The name of each assignment: loops, `with`, walrus and comprehensions are some."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def participles(trees: Trees) -> tuple[float, list[str]]:
    """The percentage of functions that begin with a participle, and each as `file: name`."""
    return share(trees, functions, begins_with_participle)


def vague_locals(trees: Trees) -> tuple[float, list[str]]:
    """The percentage of assignments to a name that says nothing of its value, and each as `file: name`."""
    return share(trees, assigned, VAGUE.fullmatch)


def share(
    trees: Trees, names_of: Callable[[ast.Module], Iterable[str]], is_counted: Callable[[str], object]
) -> tuple[float, list[str]]:
    names = [(path, name) for path, tree in trees.items() for name in names_of(tree)]
    counted = [f"{path.stem}: {name}" for path, name in names if is_counted(name)]
    return round(100 * len(counted) / len(names), 1), counted


def files_twice(paths: Iterable[Path]) -> list[str]:
    """The file names that several folders have, each with these folders."""
    folders: dict[str, list[str]] = defaultdict(list)
    for path in paths:
        folders[path.name].append(path.parent.name)
    return [
        f"{name}: {', '.join(where)}"
        for name, where in sorted(folders.items())
        if len(where) > 1 and name not in NAMED_ALIKE
    ]
