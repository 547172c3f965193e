"""Secrets that stand near a failure are learned before anything is said about it."""

from __future__ import annotations

import sys
from collections.abc import Mapping

from prefect.blocks.system import Secret
from pydantic import BaseModel, SecretStr

from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.errors.secrets.scrub import learn_secrets

AT_MODULE_LEVEL = SecretStr("module-level-hush")


class Credentials(BaseModel):
    password: SecretStr


def failure(*hidden: object) -> BaseException:
    """An error that came through a frame whose variables hold secrets."""
    local = hidden
    alone = hidden[0] if hidden else None
    try:
        raise RuntimeError("broken")
    except RuntimeError as error:
        assert local is hidden
        assert alone is (hidden[0] if hidden else None)
        return error


def test_secrets_of_the_arguments():
    learn_secrets(failure(), {"credentials": Credentials(password=SecretStr("argument-hush")), "n": 3})
    assert redact("it was argument-hush") == "it was ***"


def test_secrets_of_local_and_module_variables():
    learn_secrets(failure(Secret(value="block-value-hush")), {})
    assert redact("block-value-hush and module-level-hush") == "*** and ***"


class Hostile:
    @property
    def get_secret_value(self):
        raise RuntimeError("no")

    def __iter__(self):
        raise RuntimeError("no")


def test_it_never_raises_and_is_bounded():
    learn_secrets(failure(Hostile()), {"hostile": Hostile()})
    learn_secrets(RuntimeError("never raised"), {})

    class Broken(Mapping):
        def __getitem__(self, key):
            raise RuntimeError("no")

        def __iter__(self):
            raise RuntimeError("no")

        def __len__(self):
            return 1

    learn_secrets(failure(), Broken())

    def deep(n):
        if n == 0:
            raise RuntimeError("deep")
        deep(n - 1)

    try:
        deep(sys.getrecursionlimit() // 2)
    except RuntimeError as error:
        learn_secrets(error, {})
