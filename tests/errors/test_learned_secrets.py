"""Secrets of the parameters are learned before anything is said about a failure."""

from collections.abc import Mapping

from prefect.blocks.system import Secret
from pydantic import BaseModel, SecretStr

from prefect_resilience.errors.secrets.redact import learn_secrets, redact


class Credentials(BaseModel):
    password: SecretStr


def test_secrets_of_models_and_blocks():
    learn_secrets({"credentials": Credentials(password=SecretStr("argument-hush")), "n": 3})
    learn_secrets({"block": Secret(value="block-value-hush")})
    assert redact("it was argument-hush or block-value-hush") == "it was *** or ***"


def test_texts_under_a_secrets_name():
    learn_secrets({"api_key": "named-hush", "next_page_token": "page-hush", "name": "other-hush", "token": 3})
    assert redact("named-hush page-hush other-hush") == "*** page-hush other-hush"


class Hostile:
    @property
    def get_secret_value(self):
        raise RuntimeError("no")

    def __iter__(self):
        raise RuntimeError("no")


class Broken(Mapping):
    def __getitem__(self, key):
        raise RuntimeError("no")

    def __iter__(self):
        raise RuntimeError("no")

    def __len__(self):
        return 1


def test_it_never_raises():
    learn_secrets({"hostile": Hostile()})
    learn_secrets(Broken())
