"""What the acts of all SDKs are made of."""

import importlib
from collections.abc import Callable, Mapping
from typing import Any

from tests.errors.sdks.http_cases import Ask, said
from tests.errors.sdks.model import Act

Situations = Mapping[str, Act]


def refused(ask: Ask) -> Act:
    return lambda service: ask(service.refused, 2.0)


def silent(ask: Ask) -> Act:
    return lambda service: ask(service.silent, 0.3)


def of(path: str) -> Any:
    """What stands at a dotted path of an installed SDK."""
    module, _, name = path.rpartition(".")
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError:
        return getattr(of(module), name)


def answers(ask: Ask) -> Callable[..., Act]:
    """A maker of acts: the status, the body and the wait in seconds that the service answers with."""

    def answer(status: int, body: object = None, wait: float | None = None, **headers: str) -> Act:
        named = {name.replace("_", "-"): value for name, value in headers.items()}
        return said(ask, status, body, named | ({} if wait is None else {"Retry-After": f"{wait:g}"}))

    return answer
