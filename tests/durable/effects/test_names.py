"""What keys call a function, however its file was loaded; and whether it is still in the code."""

import functools
import importlib
import importlib.util
import runpy
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from prefect.utilities.importtools import load_script_as_module

from prefect_resilience.durable.effects.recipes import CodeSource, is_gone, source_of, task_name

SCRIPT = """
import functools

def send(order): ...

async def post(order): ...

def maker():
    def inner(order): ...
    return inner

class Shop:
    def charge(self): ...

    class Desk:
        @staticmethod
        def refund(order): ...

if True:
    def guarded(): ...

wrapped = functools.lru_cache(send)
partly = functools.partial(wrapped, 1)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A clone of somebody's code, of which nothing stays imported."""
    before = set(sys.modules)
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "clone_jobs.py").write_text(SCRIPT)
    package = tmp_path / "clone_shop" / "billing"
    package.mkdir(parents=True)
    (tmp_path / "clone_shop" / "__init__.py").write_text("")
    (package / "__init__.py").write_text("")
    (package / "orders.py").write_text(SCRIPT)
    yield tmp_path
    for name in set(sys.modules) - before:
        del sys.modules[name]


def ways(file: Path, module: str) -> Iterator[Callable[[str], object]]:
    """How a file's code is got at: by import, as a script, by Prefect, twice."""
    imported = importlib.import_module(module)
    yield lambda name: getattr(imported, name)
    for name in ("__main__", "__mp_main__"):
        yield runpy.run_path(str(file), run_name=name).__getitem__
    for _ in range(2):
        loaded = load_script_as_module(str(file))
        yield functools.partial(getattr, loaded)


def test_one_name_however_a_script_was_loaded(folder):
    for got in ways(folder / "clone_jobs.py", "clone_jobs"):
        assert task_name(got("send")) == "clone_jobs.send"
        assert task_name(got("post")) == "clone_jobs.post"
        assert task_name(got("maker")()) == "clone_jobs.maker.<locals>.inner"
        assert task_name(got("Shop").Desk.refund) == "clone_jobs.Shop.Desk.refund"


def test_what_has_no_file():
    assert task_name(print) == "print" or task_name(print) == "builtins.print"

    class Callable:
        def __call__(self): ...

    assert task_name(Callable()).endswith("Callable")
    cell: dict = {"__name__": "__main__"}
    exec(compile("def f(): ...", "/tmp/ipykernel_1/123.py", "exec"), cell)
    assert task_name(cell["f"]) == "f"
    exec(compile("def g(): ...", "<stdin>", "exec"), cell)
    assert task_name(cell["g"]) == "g"


def test_what_is_still_in_the_code(folder):
    source = source_of(importlib.import_module("clone_jobs").send)
    for name in (
        "send",
        "post",
        "maker",
        "maker.<locals>.inner",
        "Shop.charge",
        "Shop.Desk.refund",
        "guarded",
    ):
        assert not is_gone(f"clone_jobs.{name}", source)
    for name in ("sent", "Shop", "Shop.send", "inner", "maker.<locals>.other", "Desk.refund"):
        assert is_gone(f"clone_jobs.{name}", source)


def test_nothing_is_imported_to_find_out(folder):
    (folder / "clone_loud.py").write_text("raise SystemExit('imported')\ndef send(): ...\n")
    source = source_of(importlib.import_module("clone_jobs").send)
    assert not is_gone("clone_loud.send", source)
    assert is_gone("clone_loud.post", source)
    assert "clone_loud" not in sys.modules


def test_a_module_that_is_gone(folder):
    source = source_of(importlib.import_module("clone_jobs").send)
    assert is_gone("clone_gone.send", source)
    assert is_gone("clone_shop.billing.gone.send", source)
    importlib.import_module("clone_shop.billing.orders")
    assert is_gone("clone_shop.billing.gone.send", source)
    assert not is_gone("clone_shop.billing.orders.send", source)
    assert is_gone("clone_shop.billing.orders.sent", source)
    assert is_gone("clone_jobs.orders.send", source), "a module that is no package"
    (folder / "clone_shop" / "billing" / "__init__.py").write_text("def opened(): ...")
    assert not is_gone("clone_shop.billing.opened", source)


def test_a_script_of_a_package_that_prefect_loaded(folder):
    file = folder / "clone_shop" / "billing" / "orders.py"
    loaded = load_script_as_module(str(file))
    (folder / "clone_jobs.py").unlink()
    elsewhere = CodeSource("other.send", "other", "")
    assert loaded.__name__ == "orders"
    assert not is_gone("clone_shop.billing.orders.send", elsewhere)
    assert is_gone("clone_shop.billing.orders.sent", elsewhere)


@pytest.mark.parametrize("text", ["def send(:", "\x00"])
def test_what_cannot_be_read_tells_nothing(folder, text):
    source = source_of(importlib.import_module("clone_jobs").send)
    (folder / "clone_jobs.py").write_text(text)
    assert not is_gone("clone_jobs.sent", source)
    (folder / "clone_jobs.py").unlink()
    assert not is_gone("clone_jobs.sent", source)
    assert not is_gone("clone_jobs.sent", CodeSource("clone_jobs.send", "clone_jobs", "<stdin>"))


def test_names_without_a_module():
    assert is_gone("f", CodeSource("g", "", ""))
    assert is_gone("Shop.f", CodeSource("g", "", ""))
    assert not is_gone("..f", CodeSource("g", "", "")), "nothing can tell"


def test_a_lambda_has_no_name_in_the_sources():
    assert not is_gone("anywhere.<lambda>", CodeSource("anywhere.send", "anywhere", ""))
