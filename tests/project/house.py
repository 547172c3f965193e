"""`make house`: how large the package is, and which of its limits do not hold.

    python -m tests.project.house [--long]

prints one line for each figure, with its limit where there is one. `--long` adds what the figures count.
The exit code is 1 if a figure is above its limit.
"""

import ast
import re
import sys
import tomllib
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from tests.project import names

# The largest value that a figure may have. Lower a limit as soon as a lower one holds.
LIMITS = {
    "lines of code": 40366,
    "files": 295,
    "longest file, lines": 396,
    "arrows between rooms": 45,
    "arrows upward": 0,
    "arrows that only late imports make": 0,
    "contracts, lines": 46,
    "files named in contracts": 0,
    "pyproject.toml, lines": 196,
    "class names that stand twice": 0,
    "files with stubs": 299,
    "tests, lines of code": 59892,
    "functions named by a participle, %": 2.4,
    "assignments to vague names, %": 0.1,
    "file names that stand twice": 5,
}

ROOT = Path(__file__).parents[2]
NAME = "prefect_resilience"
PACKAGE = ROOT / NAME
PROJECT = ROOT / "pyproject.toml"
TESTS = ROOT / "tests"


@dataclass
class Figure:
    """One number and what it counts. Its limit stands in LIMITS; None is no limit."""

    name: str
    value: float
    counted: list[str] = field(default_factory=list)

    @property
    def limit(self) -> float | None:
        return LIMITS.get(self.name)

    @property
    def holds(self) -> bool:
        return self.limit is None or self.value <= self.limit

    def __str__(self) -> str:
        limit = "" if self.limit is None else f"{'of at most' if self.holds else 'TOO MANY, of'} {self.limit}"
        return f"{self.name:<36}{self.value:>8}  {limit}".rstrip()


@cache
def parsed() -> dict[Path, ast.Module]:
    return {path: parse(path) for path in sorted(PACKAGE.rglob("*.py"))}


def parse(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"))


def code_lines(path: Path) -> int:
    """Lines without blank ones, comments and docstrings."""
    text = path.read_text(encoding="utf-8").split("\n")
    lines = {number for number, line in enumerate(text, 1) if line.strip() and line.strip()[0] != "#"}
    nodes = list(ast.walk(parse(path)))
    for node in nodes:
        if isinstance(node, ast.Constant | ast.JoinedStr):
            lines |= set(range(node.lineno, (node.end_lineno or node.lineno) + 1))
    for node in nodes:
        is_documented = isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef)
        if is_documented and ast.get_docstring(node, clean=False) is not None:
            docstring = node.body[0]
            lines -= set(range(docstring.lineno, (docstring.end_lineno or docstring.lineno) + 1))
    return len(lines)


# -- arrows: room A imports something of room B


def is_type_checking(node: ast.AST) -> bool:
    return isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)


def imports(node: ast.AST, late: bool = False) -> Iterator[tuple[str, bool]]:
    """The modules that a tree imports, and whether inside a function. Imports for types do not count."""
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Import):
            yield from ((alias.name, late) for alias in child.names)
        elif isinstance(child, ast.ImportFrom) and child.module is not None:
            yield from ((f"{child.module}.{alias.name}", late) for alias in child.names)
        elif not is_type_checking(child):
            yield from imports(child, late or isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef))


def room_of(module: str) -> str | None:
    """The room of a module; None for what is no room: other packages and the files at the package's top."""
    package, _, rest = module.partition(".")
    room = rest.partition(".")[0]
    return room if package == NAME and (PACKAGE / room / "__init__.py").exists() and room else None


def arrows() -> dict[tuple[str, str], list[tuple[bool, str]]]:
    """For each pair of rooms the imports that make the arrow: whether it is late, and where it stands."""
    found: dict[tuple[str, str], list[tuple[bool, str]]] = {}
    for path, tree in parsed().items():
        here = room_of(".".join(path.relative_to(ROOT).with_suffix("").parts))
        for module, late in imports(tree):
            there = room_of(module)
            if here and there and here != there:
                found.setdefault((here, there), []).append((late, f"{path.relative_to(ROOT)}: {module}"))
    return found


def heights() -> dict[str, int]:
    """How high each room lies, by the layers that import-linter checks."""
    contracts = tomllib.loads(PROJECT.read_text())["tool"]["importlinter"]["contracts"]
    (layers,) = [contract["layers"] for contract in contracts if contract["type"] == "layers"]
    return {
        room.strip(): height for height, layer in enumerate(reversed(layers)) for room in layer.split(":")
    }


# -- contracts


def contract_lines() -> list[str]:
    """The lines of pyproject.toml that configure import-linter, without blank ones and comments."""
    sections = re.split(r"^(?=\[)", PROJECT.read_text(), flags=re.MULTILINE)
    of_contracts = [
        section for section in sections if section.startswith(("[tool.importlinter", "[[tool.import"))
    ]
    lines = "".join(of_contracts).splitlines()
    return [line for line in lines if line.strip() and not line.startswith("#")]


def files_in_contracts() -> list[str]:
    """The single files that contracts name: they would have to be followed whenever a file moves."""
    named = set(re.findall(rf"{NAME}(?:\.\w+)+", "\n".join(contract_lines())))
    return sorted(name for name in named if (ROOT / name.replace(".", "/")).with_suffix(".py").exists())


def classes_twice() -> list[str]:
    places: dict[str, list[str]] = {}
    for path, tree in parsed().items():
        for node in tree.body:
            if isinstance(node, ast.ClassDef):
                places.setdefault(node.name, []).append(str(path.relative_to(PACKAGE)))
    return [f"{name}: {', '.join(where)}" for name, where in sorted(places.items()) if len(where) > 1]


@cache
def figures() -> list[Figure]:
    lines = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in parsed()}
    longest = max(lines, key=lambda path: lines[path])
    pairs = arrows()
    height = heights()
    upward = {pair: uses for pair, uses in pairs.items() if height[pair[1]] > height[pair[0]]}
    late = {pair: uses for pair, uses in pairs.items() if all(is_late for is_late, _ in uses)}

    def places(chosen: dict[tuple[str, str], list[tuple[bool, str]]]) -> list[str]:
        return [f"{here} -> {there}, {uses[0][1]}" for (here, there), uses in sorted(chosen.items())]

    twice, named = classes_twice(), files_in_contracts()
    names_twice = names.files_twice(parsed())
    return [
        Figure("lines of code", sum(map(code_lines, lines))),
        Figure("files", len(lines)),
        Figure("longest file, lines", lines[longest], [str(longest.relative_to(ROOT))]),
        Figure("arrows between rooms", len(pairs), [f"{here} -> {there}" for here, there in sorted(pairs)]),
        Figure("arrows upward", len(upward), places(upward)),
        Figure("arrows that only late imports make", len(late), places(late)),
        Figure("contracts, lines", len(contract_lines())),
        Figure("files named in contracts", len(named), named),
        Figure("pyproject.toml, lines", len(PROJECT.read_text().splitlines())),
        Figure("class names that stand twice", len(twice), twice),
        Figure("files with stubs", len(lines) + len(list(PACKAGE.rglob("*.pyi")))),
        Figure("tests, lines of code", sum(map(code_lines, TESTS.rglob("*.py")))),
        Figure("functions named by a participle, %", *names.participles(parsed())),
        Figure("assignments to vague names, %", *names.vague_locals(parsed())),
        Figure("file names that stand twice", len(names_twice), names_twice),
    ]


def main() -> None:
    found = figures()
    for figure in found:
        print(figure)
        if "--long" in sys.argv or not figure.holds:
            print("".join(f"    {one}\n" for one in figure.counted), end="")
    sys.exit(not all(figure.holds for figure in found))


if __name__ == "__main__":
    main()
