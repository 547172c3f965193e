"""Secrets and harmless texts as people write them, collected beside the rules and not from them."""

import json
from pathlib import Path

import pydantic
import pytest
import sqlalchemy
import yaml

from prefect_resilience import classify, redact
from prefect_resilience.errors.secrets.redact import redact_data
from prefect_resilience.errors.secrets.scrub import scrub_exception

HERE = Path(__file__).parent
SECRETS: list[dict[str, str]] = json.loads((HERE / "secret_forms.json").read_text())
HARMLESS: list[str] = json.loads((HERE / "harmless_texts.json").read_text())
ENOUGH = 0.95


def test_both_lists_are_long_and_sound() -> None:
    assert len(SECRETS) >= 150
    assert len(HARMLESS) >= 150
    assert len({row["text"] for row in SECRETS}) == len(SECRETS)
    assert len(set(HARMLESS)) == len(HARMLESS)
    assert all(row["secret"] in row["text"] for row in SECRETS)


def test_secrets_are_masked_in_their_usual_forms() -> None:
    shown = [row["text"] for row in SECRETS if row["secret"] in redact(row["text"])]
    assert len(shown) <= (1 - ENOUGH) * len(SECRETS), shown


def test_harmless_texts_are_left_alone() -> None:
    masked = [text for text in HARMLESS if redact(text) != text]
    assert len(masked) <= (1 - ENOUGH) * len(HARMLESS), masked


def test_what_was_masked_stays_as_it_is() -> None:
    for text in (*(row["text"] for row in SECRETS), *HARMLESS):
        once = redact(text)
        assert redact(once) == once


WHAT_STAYS = {
    "postgresql://app:pw123@db:5432/x?a=b": "postgresql://app:***@db:5432/x?a=b",
    "password=hunter2, user=bob": "password=***, user=bob",
    '{"api_key": "k1", "n": 1}': '{"api_key": "***", "n": 1}',
    "Authorization: Bearer abc failed": "Authorization: Bearer *** failed",
    "https://x/?page=2&api_key=v&z=1": "https://x/?page=2&api_key=***&z=1",
    "https://hooks.slack.com/services/T0/B0/x": "https://hooks.slack.com/services/***",
    "f(password=abc)": "f(password=***)",
    "a\nCookie: x=1\nb": "a\nCookie: ***\nb",
    "api_key: |\n  fake1\n  fake2\nother: 1": "api_key: |\n  ***\nother: 1",
    "https://fakeToken0123456789@git.example/r": "https://***@git.example/r",
    "https://x.example/cb?code=fakeCode99&state=1": "https://x.example/cb?code=***&state=1",
    "mysql -u root -pfakepw db": "mysql -u root -p*** db",
    "PWD=/home/app": "PWD=/home/app",
    "a;PWD=/fake/pw9;b": "a;PWD=***;b",
    "def f(password: str = 'fake1') -> None": "def f(password: str = '***') -> None",
    "AKIAIOSFODNN7EXAMPLE wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY": "*** ***",
    "AKIAIOSFODNN7EXAMPLE 3f786850e387550fdab836ed7e6dc881de23001b": (
        "*** 3f786850e387550fdab836ed7e6dc881de23001b"
    ),
    "Basic ZmFrZTpmYWtl": "Basic ***",
    "Basic approach to this": "Basic approach to this",
    "[SQL: SELECT 1]\n[parameters: ('x',)]": "[SQL: SELECT 1]\n[parameters: ('x',)]",
    '[SQL: SET pwd=?]\n[parameters: ("it\'s fake1", 7)]\nmore': "[SQL: SET pwd=?]\n[parameters: ***]\nmore",
    "E('[SQL: SET pwd=?]\\n[parameters: (\"fake1\",)]\\n(Background on x)')": (
        "E('[SQL: SET pwd=?]\\n[parameters: ***]\\n(Background on x)')"
    ),
    "[SQL: SET password=?]\n[parameters: ('fake1', 'cut off": "[SQL: SET password=?]\n[parameters: ***",
    "[SQL: SET password=?]\n[parameters: {'p': '***'}]": "[SQL: SET password=?]\n[parameters: {'p': '***'}]",
    "DETAIL:  Failing row contains (1, fake1 (x)).\n": "DETAIL:  Failing row contains (***).\n",
    "{'text': 'a: 1\\npassword: |\\n  fake1\\n  2\\nb: 1'}": "{'text': 'a: 1\\npassword: |\\n  ***\\nb: 1'}",
    '{"text": "token: >-\\n  fake1\\n\\n  2", "b": 1}': '{"text": "token: >-\\n  ***", "b": 1}',
    "password: |\r\n  fake1\r\nb: 1": "password: |\r\n  ***\nb: 1",
    "E('L\\npassword\\n  Wrong [type=int, input_value=\\'fake1\\', input_type=str]')": (
        "E('L\\npassword\\n  Wrong [type=int, input_value=***, input_type=str]')"
    ),
    "api_keys.function-after[f(), str]\n  Wrong [type=x, input_value='fake1', input_type=str]": (
        "api_keys.function-after[f(), str]\n  Wrong [type=x, input_value=***, input_type=str]"
    ),
    "L\n  Wrong [type=x, input_value={'user': 'somebody with...d': 'fake-pw1'}, input_type=dict]": (
        "L\n  Wrong [type=x, input_value={'user': 'somebody with...***, input_type=dict]"
    ),
    "L\n  Wrong [type=x, input_value='a text that...and ends', input_type=str]": (
        "L\n  Wrong [type=x, input_value='a text that...and ends', input_type=str]"
    ),
    "max_tokens\n  Wrong [type=int, input_value='many', input_type=str]": (
        "max_tokens\n  Wrong [type=int, input_value='many', input_type=str]"
    ),
    "password_confirm=fake1": "password_confirm=***",
    "imagePullSecrets: registry": "imagePullSecrets: registry",
    "dbPass=fakepw1": "dbPass=***",
    "token == expected": "token == expected",
    "_token = token": "_token = token",
}


@pytest.mark.parametrize(("text", "expected"), WHAT_STAYS.items())
def test_what_tells_where_the_secret_was_stays(text: str, expected: str) -> None:
    assert redact(text) == expected


def test_structures_go_on_at_a_page_token() -> None:
    masked = redact_data({"next_page_token": "CAUQAA", "nextToken": "x", "token": "fake1"})
    assert masked == {"next_page_token": "CAUQAA", "nextToken": "x", "token": "***"}


class Settings(pydantic.BaseModel):
    password: int
    database: dict[str, int]


def test_a_field_named_after_a_secret_shows_no_input() -> None:
    with pytest.raises(pydantic.ValidationError) as caught:
        Settings(password="fake-hunter22", database={"api_key": "fake-key22", "size": "big"})  # type: ignore[arg-type,dict-item]
    message = classify(caught.value).message
    assert "fake-" not in message
    assert "input_value='big'" in message
    scrubbed = scrub_exception(caught.value)
    assert isinstance(scrubbed, pydantic.ValidationError)
    assert "fake-" not in f"{scrubbed} {scrubbed.errors()}"
    assert [line["input"] for line in scrubbed.errors()] == ["***", "***", "big"]


@pytest.mark.parametrize("parameters", [("bob", "fake-pw1"), ({"n": "bob", "p": "fake-pw1"})])
def test_parameters_of_a_statement_that_names_a_secret(parameters) -> None:
    engine = sqlalchemy.create_engine("sqlite://")
    named = isinstance(parameters, dict)
    values = ":n, :p" if named else "?, ?"
    with pytest.raises(sqlalchemy.exc.OperationalError) as caught, engine.connect() as connection:
        connection.exec_driver_sql(f"INSERT INTO missing (name, password) VALUES ({values})", parameters)
    assert "fake-pw1" in str(caught.value)
    assert "fake-pw1" not in redact(str(caught.value))
    assert "INSERT INTO missing" in redact(str(caught.value))
    assert "fake-pw1" not in repr(vars(scrub_exception(caught.value)))


def test_an_error_keeps_its_parts_beside_the_parameters() -> None:
    """Such as `orig`, which says what kind of error it is."""
    cause = Exception("no such table")
    error = sqlalchemy.exc.OperationalError("SELECT 1 WHERE password = ?", [("it's fake-pw1", 7)], cause)
    assert scrub_exception(error) is error
    assert error.orig is cause
    assert error.params == (("***", "***"),)
    clean = sqlalchemy.exc.OperationalError("SELECT 1 WHERE name = ?", ("ann",), cause)
    assert scrub_exception(clean) is clean
    assert clean.params == ("ann",)


@pytest.mark.parametrize(("key", "shown"), [("password", False), ("colour", True)])
def test_a_broken_document_is_not_shown_where_it_has_a_secret(key: str, shown: bool) -> None:
    with pytest.raises(yaml.YAMLError) as caught:
        yaml.safe_load(f"user: ann\n{key}: |\n  first\n fake-second: [\n")
    assert "fake-second" in str(caught.value)
    scrubbed = scrub_exception(caught.value)
    assert scrubbed is caught.value
    assert ("fake-second" in str(scrubbed)) is shown
    assert "line 4, column 2" in str(scrubbed)
