"""No public name without a docstring, an example that is run, and a place in the reference."""

import doctest
import importlib
import inspect
from typing import Any

import pytest

import prefect_resilience
from docs.making import options, pictures, tables
from tests.docs.pages import DOCS, PACKAGE, pages, public_names, used_in

pytestmark = pytest.mark.docs

NAMES = public_names()


def thing(name: str) -> Any:
    module, _, short = name.rpartition(".")
    return getattr(importlib.import_module(module), short)


def docstring(name: str) -> str:
    found = thing(name)
    # What is inherited says nothing of the class itself
    own = found.__dict__.get("__doc__") if inspect.isclass(found) else found.__doc__
    return inspect.cleandoc(own or "")


def members(name: str) -> dict[str, Any]:
    """The functions and properties that a public class of ours brings with it, by their names."""
    found = thing(name)
    if not inspect.isclass(found) or not found.__module__.startswith(PACKAGE):
        return {}
    own = {
        member: value.fget if isinstance(value, property) else getattr(value, "__func__", value)
        for member, value in vars(found).items()
        if not member.startswith(("_", "model_"))
    }
    return {
        f"{name}.{member}": value
        for member, value in own.items()
        if inspect.isfunction(value) and value.__module__.startswith(PACKAGE)
    }


def examples() -> dict[str, str]:
    """Every docstring with an example, of public names and their members."""
    texts = {name: docstring(name) for name in NAMES}
    for name in NAMES:
        texts |= {member: inspect.cleandoc(value.__doc__ or "") for member, value in members(name).items()}
    return {name: text for name, text in texts.items() if ">>>" in text}


EXAMPLES = examples()


@pytest.mark.parametrize("name", NAMES)
def test_it_says_what_it_is(name: str) -> None:
    text = docstring(name)
    assert text, f"{name} has no docstring"
    # pydantic and dataclasses write one where there is none
    assert not text.startswith(f"{name.rpartition('.')[2]}("), f"{name} has no docstring of its own"
    assert text.split("\n\n")[0].rstrip().endswith((".", ":", "?")), text.split("\n\n")[0]


def test_every_public_member_says_what_it_is() -> None:
    silent = [member for name in NAMES for member, value in members(name).items() if not value.__doc__]
    assert silent == []


def test_every_public_name_has_an_example_that_is_run() -> None:
    shown = set(EXAMPLES).union(*map(used_in, pages()))
    assert [name for name in NAMES if name not in shown] == []


@pytest.mark.parametrize("name", EXAMPLES)
@pytest.mark.usefixtures("as_a_reader")
def test_the_examples_of_docstrings_run(name: str) -> None:
    public = {short: getattr(prefect_resilience, short) for short in prefect_resilience.__all__}
    # doctest would run what it finds in other modules as well
    test = doctest.DocTestParser().get_doctest(EXAMPLES[name], public, name, None, 0)
    told: list[str] = []
    flags = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    results = doctest.DocTestRunner(optionflags=flags).run(test, out=told.append)
    assert results.attempted
    assert not results.failed, "".join(told)


def test_the_reference_has_every_public_name() -> None:
    text = "\n".join(page.read_text(encoding="utf-8") for page in (DOCS / "reference").glob("*.md"))
    there = {
        line.removeprefix("::: ").rpartition(".")[2] for line in text.splitlines() if line.startswith(":::")
    }
    there |= {"list", "get"}  # the module calls them so, the reference by what they are in their file
    wanted = {name.rpartition(".")[2] for name in NAMES} - {"dead_letters"}
    assert wanted - there == set()


def test_the_tables_are_those_of_the_code() -> None:
    assert tables.written(tables.PAGE.read_text(encoding="utf-8")) == tables.PAGE.read_text(encoding="utf-8")


def test_the_tables_of_options_are_those_of_the_code() -> None:
    assert options.stale() == []


def test_the_pictures_are_those_of_the_code() -> None:
    assert pictures.stale() == []
