"""Pairs of calls that are different effects, and how easily they could be taken for one."""

from __future__ import annotations

import importlib
import sys
import unicodedata
from collections import namedtuple
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import date, datetime
from decimal import Decimal
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

from pydantic import BaseModel, SecretStr

from prefect_resilience import resilient_task
from prefect_resilience.effects import Effect

SENT: list[Any] = []
"""What was sent: in a closure it would be part of what is tried here."""

Call = tuple[Any, tuple[Any, ...]]
"""A task, and its arguments."""


class Colour(Enum):
    RED = "red"


class Shade(Enum):
    RED = "red"


class Guest(BaseModel):
    name: str


class Host(BaseModel):
    name: str


class Party(BaseModel):
    who: Any


Pair = namedtuple("Pair", "x y")

LONG = "x" * 5_000

VALUES: dict[str, tuple[Any, Any]] = {
    "two secrets": (SecretStr("hunter2"), SecretStr("letmein")),
    "a secret and its stars": (SecretStr("hunter2"), "**********"),
    "nested models": (Party(who=Guest(name="Ada")), Party(who=Host(name="Ada"))),
    "bytes and their text": (b"abc", "abc"),
    "a list and a tuple": ([1, 2], (1, 2)),
    "a tuple and a named tuple": ((1, 2), Pair(1, 2)),
    "None and its name": (None, "None"),
    "True and 1": (True, 1),
    "1 and its text": (1, "1"),
    "2**53 and 2**53 + 1": (2.0**53, 2**53 + 1),
    "a dict with 1 and one with its text": ({1: "a"}, {"1": "a"}),
    "a date and its midnight": (date(2026, 11, 1), datetime(2026, 11, 1)),
    "two decimals of one value": (Decimal("1.5"), Decimal("1.50")),
    "two enums with equal values": (Colour.RED, Shade.RED),
    "long texts that end differently": (LONG + "a", LONG + "b"),
    "two forms of one letter": (unicodedata.normalize("NFC", "é"), unicodedata.normalize("NFD", "é")),
    "a space and its escape": ("a b", "a%20b"),
    "a slash and its escape": ("a/b", "a%2Fb"),
}


@resilient_task(effect="external", retry=None)
def send(value: Any) -> None:
    SENT.append(value)


@resilient_task(effect=Effect(key="mail:{value}"), retry=None)
def send_by_template(value: Any) -> None:
    SENT.append(value)


@resilient_task(effect=Effect(key="mail:{first}:{second}"), retry=None)
def send_separated(first: str, second: str) -> None:
    SENT.append((first, second))


@resilient_task(effect=Effect(key="{first}{second}"), retry=None)
def send_adjacent(first: str, second: str) -> None:
    SENT.append((first, second))


@resilient_task(effect=Effect(key="mail:{first}~{second}"), retry=None)
def send_with_tilde(first: str, second: str) -> None:
    SENT.append((first, second))


@resilient_task(effect=Effect(key="pay:{amount:.0f}"), retry=None)
def pay_rounded(amount: float) -> None:
    SENT.append(amount)


@resilient_task(effect=Effect(key="invite:{guest.name}"), retry=None)
def invite(guest: Any) -> None:
    SENT.append(guest)


# -- pairs of tasks. Each gives its calls; what is wrong with them may be told when they are decorated.


def one_template_for_three() -> list[Call]:
    @resilient_task(effect=Effect(key="order:{order}"), retry=None)
    def charge(order: int) -> None:
        SENT.append(("charge", order))

    @resilient_task(effect=Effect(key="order:{order}"), retry=None)
    def ship(order: int) -> None:
        SENT.append(("ship", order))

    @resilient_task(effect=Effect(key="order:{order}"), retry=None)
    def thank(order: int) -> None:
        SENT.append(("thank", order))

    return [(charge, (7,)), (ship, (7,)), (thank, (7,))]


def a_literal_and_a_template() -> list[Call]:
    @resilient_task(effect=Effect(key="mail:{to}"), retry=None)
    def by_name(to: str) -> None:
        SENT.append(to)

    @resilient_task(effect=Effect(key="mail:everybody"), retry=None)
    def to_everybody() -> None:
        SENT.append("everybody")

    return [(by_name, ("everybody",)), (to_everybody, ())]


def closures_of_a_factory() -> list[Call]:
    def sender(template: str) -> Any:
        @resilient_task(effect="external", retry=None)
        def send_it(to: str) -> None:
            SENT.append((template, to))

        return send_it

    return [(sender("welcome"), ("ada",)), (sender("goodbye"), ("ada",))]


def functions_of_one_name() -> list[Call]:
    """Two functions that stand one after the other under the same name."""

    @resilient_task(effect="external", retry=None)
    def send_it(to: str) -> None:
        SENT.append(("first", to))

    first = send_it

    @resilient_task(effect="external", retry=None)
    def send_it(to: str) -> None:
        SENT.append(("second", to))

    return [(first, ("ada",)), (send_it, ("ada",))]


def lambdas() -> list[Call]:
    decorate = resilient_task(effect="external", retry=None)
    pair = decorate(lambda to: SENT.append(("a", to))), decorate(lambda to: SENT.append(("b", to)))
    return [(task, ("ada",)) for task in pair]


def copies_of_other_names() -> list[Call]:
    return [(send.with_options(name=name), ("ada",)) for name in ("welcome", "goodbye")]


class Mailer:
    def __init__(self, account: str) -> None:
        self.account = account

    @classmethod
    def decorated(cls, effect: Any) -> type[Mailer]:
        class Decorated(cls):
            @resilient_task(effect=effect, retry=None)
            def send(self, to: str) -> None:
                SENT.append((self.account, to))

        return Decorated


def methods_of_two_objects() -> list[Call]:
    mailer = Mailer.decorated("external")
    return [(mailer(account).send, ("ada",)) for account in ("sales", "support")]


def methods_of_two_objects_with_a_key() -> list[Call]:
    mailer = Mailer.decorated(Effect(key="mail:{to}"))
    return [(mailer(account).send, ("ada",)) for account in ("sales", "support")]


def modules_of_one_file_name(folder: Path) -> list[Call]:
    """`pairs_a/mails.py` and `pairs_b/mails.py`, each with a `send`."""
    return [(module.send, ("ada",)) for module in (imported(folder, "pairs_a"), imported(folder, "pairs_b"))]


def imported(folder: Path, package: str) -> ModuleType:
    place = folder / package
    place.mkdir()
    (place / "__init__.py").write_text("")
    (place / "mails.py").write_text(
        "from prefect_resilience import resilient_task\n"
        "\n"
        '@resilient_task(effect="external", retry=None)\n'
        "def send(to):\n"
        "    SENT.append((__name__, to))\n"
    )
    module = importlib.import_module(f"{package}.mails")
    module.SENT = SENT  # type: ignore[attr-defined]
    return module


@contextmanager
def on_the_path(folder: Path) -> Iterator[None]:
    sys.path.insert(0, str(folder))
    try:
        yield
    finally:
        sys.path.remove(str(folder))
        for name in [name for name in sys.modules if name.split(".")[0] in ("pairs_a", "pairs_b")]:
            del sys.modules[name]


TASKS: dict[str, Callable[[], list[Call]]] = {
    "a template with the separator": lambda: [(send_separated, ("x:y", "z")), (send_separated, ("x", "y:z"))],
    "a template with a tilde": lambda: [(send_with_tilde, ("x~y", "z")), (send_with_tilde, ("x", "y~z"))],
    "adjacent fields": lambda: [(send_adjacent, ("xy", "z")), (send_adjacent, ("x", "yz"))],
    "a field that is rounded": lambda: [(pay_rounded, (1.4,)), (pay_rounded, (1.3,))],
    "a field of two objects": lambda: [(invite, (Guest(name="Ada"),)), (invite, (Host(name="Ada"),))],
    "three tasks with one template": one_template_for_three,
    "a literal key and a template": a_literal_and_a_template,
    "closures of a factory": closures_of_a_factory,
    "two functions of one name": functions_of_one_name,
    "lambdas": lambdas,
}

IN_RUNS: dict[str, Callable[[], list[Call]]] = {
    "copies of other names": copies_of_other_names,
    "methods of two objects": methods_of_two_objects,
    "methods of two objects with a key": methods_of_two_objects_with_a_key,
}
"""Those that need a real run."""
