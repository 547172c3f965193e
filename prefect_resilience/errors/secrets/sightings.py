"""Secrets seen near a failure: in the call's arguments and in the frames that the error came through."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from types import FrameType
from typing import Any, cast

from pydantic import BaseModel

from prefect_resilience.errors.secrets.redact import collect_secrets, register_secret

MOST_FRAMES = 30
MOST_NAMES = 500


def learn_secrets(error: BaseException, parameters: Mapping[str, Any]) -> None:
    """Register every `SecretStr` and every block's secret that stands near the failure. Never raises.

    A block that a function loaded is found in its local variables, one that a module loaded in its globals.
    """
    try:
        for secret in collect_secrets(dict(parameters)):
            register_secret(secret)
        for frame in _frames(error):
            for value in _holders(frame):
                for secret in collect_secrets(value):
                    register_secret(secret)
    except Exception:  # noqa: BLE001 - objects of any kind are looked at, and a failure is being reported
        return


def _frames(error: BaseException) -> Iterator[FrameType]:
    traceback, seen = error.__traceback__, 0
    while traceback is not None and seen < MOST_FRAMES:
        yield traceback.tb_frame
        traceback, seen = traceback.tb_next, seen + 1


def _holders(frame: FrameType) -> Iterator[Any]:
    """The variables of a frame that may hold a secret: secrets themselves, and models such as blocks."""
    for names in (frame.f_locals, frame.f_globals):
        for value in list(names.values())[:MOST_NAMES]:
            if isinstance(value, BaseModel) or hasattr(cast(object, type(value)), "get_secret_value"):
                yield value
