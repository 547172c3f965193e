"""Secrets out of texts, and nothing else out of them."""

import base64
import json
import re
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any
from urllib.parse import quote, quote_plus

import pydantic
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from prefect_resilience import (
    ConfigurationError,
    classify,
    error_context,
    redact,
    register_secret,
    register_secret_pattern,
)
from prefect_resilience.errors.secrets.patterns import MASK
from prefect_resilience.errors.secrets.redact import (
    MAXIMUM_VALUES,
    all_spellings,
    collect_secrets,
    redact_beginning,
    redact_data,
)
from prefect_resilience.errors.secrets.redact import registered as secrets
from prefect_resilience.errors.secrets.scrub import scrub_exception
from prefect_resilience.guards.partials import partial_output
from tests.errors.by_name import forget_secrets


@pytest.fixture
def registered() -> Iterator[Callable[[str | bytes], None]]:
    yield register_secret
    forget_secrets()


EMBEDDINGS: list[Callable[[str], str]] = [
    str,
    repr,
    json.dumps,
    lambda text: json.dumps(json.dumps(text)),
    lambda text: json.dumps({"message": text, "ok": True}),
    lambda text: repr(ValueError(text)),
    lambda text: f"Traceback (most recent call last):\n  File 'x.py', line 1\nValueError: {text}\nend",
    lambda text: f"prefix {text} suffix",
]


def test_the_corpus_is_large_and_sound(planted_secrets) -> None:
    assert len(planted_secrets) >= 60
    for row in planted_secrets:
        assert row["secret"] in row["text"]


@pytest.mark.requirement("002.23")
@pytest.mark.parametrize("embed", EMBEDDINGS)
def test_no_planted_secret_comes_through(planted_secrets, embed) -> None:
    for row in planted_secrets:
        masked = redact(embed(row["text"]))
        assert row["secret"] not in masked, masked
        assert "***" in masked
        assert redact(masked) == masked


CLEAN = [
    "503 Service Unavailable",
    "Server error '503 Service Unavailable' for url 'http://127.0.0.1:8080/a/b?page=2&size=10'",
    "run 3f2b8c1e-0d4a-4a57-9a5e-1b2c3d4e5f60 failed at 2026-11-20T13:28:25.123456+00:00",
    "File '/usr/lib/python3.11/site-packages/httpx/_client.py', line 901, in send",
    "the secret of success",
    "max_tokens=4096, total_tokens: 12, prompt_tokens=3",
    "Unexpected token: } in JSON at position 3",
    "invalid token: expired",
    "token: 512",
    "token_type: bearer",
    "Bearer authentication is required",
    "basic authentication failed",
    "password=None",
    'password: ""',
    "KeyError: 'secret_name'",
    "task-abcdefghijklmnopqrstuvwxyz failed",
    "http://localhost:4200/api/flow_runs/filter",
    "see https://user@example.com/path and mail a@b.c",
    "pass=3 fail=2",
    "missing required argument: password",
    "fields ['password', 'username'] are required",
    "primary key=42",
    'column "password_hash" does not exist',
    "https://docs.prefect.io/v3/develop/blocks?highlight=secret",
    "password_file: /run/secrets/db",
    "SharedAccessKeyName=RootManageSharedAccessKey",
    "eyJ is how a JWT begins",
    "-----BEGIN CERTIFICATE-----\nMIIB\n-----END CERTIFICATE-----",
    "sk-learn",
    "a signature: none",
    "",
]


@pytest.mark.parametrize("text", CLEAN)
def test_ordinary_text_stays(text) -> None:
    assert redact(text) is text


def test_a_registered_value_is_masked_in_every_spelling(registered) -> None:
    secret = "tr1cky/va lue+\"'\\é&="
    registered(secret)
    raw = secret.encode()
    for spelling in (
        secret,
        quote(secret),
        quote(secret, safe=""),
        quote_plus(secret),
        repr(secret)[1:-1],
        json.dumps(secret)[1:-1],
        json.dumps(secret, ensure_ascii=False)[1:-1],
        base64.b64encode(raw).decode().rstrip("="),
        base64.urlsafe_b64encode(raw).decode().rstrip("="),
    ):
        masked = redact(f"<{spelling}>")
        assert spelling not in masked
        assert "***" in masked
    for before in ("", "u", "us", "use", "user:"):
        masked = redact(base64.b64encode(f"{before}{secret}tail".encode()).decode())
        assert "***" in masked
        rest = "".join(part for part in masked.split("***"))
        assert len(rest) < 16


def test_registration_has_bounds(registered) -> None:
    before = all_spellings(secrets.generation)
    for ignored in ("", "abc", "  ab ", "****", "*abc*", b"xyz", "a***b"):
        register_secret(ignored)
    assert all_spellings(secrets.generation) == before
    registered(b"bytes-value")
    assert redact("a bytes-value b") == "a *** b"
    registered("*starred*")
    assert redact(redact("x *starred* y")) == redact("x *starred* y")
    for number in range(MAXIMUM_VALUES + 10):
        registered(f"many-values-{number:05}")
    assert redact("many-values-00000") == "many-values-00000"
    assert redact(f"many-values-{MAXIMUM_VALUES:05}") == "***"


def test_patterns_of_users() -> None:
    register_secret_pattern(r"badge-\d+")
    register_secret_pattern(r"badge-\d+")
    register_secret_pattern(re.compile(r"pin (?P<secret>\d*)"))
    register_secret_pattern(r"z*")
    try:
        assert redact("badge-123 and pin 4711, pin ") == "*** and pin ***, pin "
    finally:
        forget_secrets()
    assert redact("badge-123") == "badge-123"
    with pytest.raises(ConfigurationError, match="not a valid regular expression"):
        register_secret_pattern("(")


def test_structures() -> None:
    masked = redact_data(
        {
            "password": "hunter2",
            "n": 1,
            "list": ["token=abc123", ("x", None)],
            "sk-abcdefghijklmnopqrst": True,
            "api_key": {"deep": "x"},
            3: "ok",
            "secret": "",
        }
    )
    assert masked == {
        "password": "***",
        "n": 1,
        "list": ["token=***", ("x", None)],
        "***": True,
        "api_key": {"deep": "x"},
        3: "ok",
        "secret": "",
    }
    deep: Any = "x"
    for _ in range(50):
        deep = [deep]
    assert "***" in repr(redact_data(deep))
    assert len(redact_data(["x"] * 20_000)) == 10_000


class Settings(pydantic.BaseModel):
    model_config = pydantic.ConfigDict(extra="allow")
    password: pydantic.SecretStr
    key: pydantic.SecretBytes


@dataclass
class Holder:
    settings: Any
    other: int = 1


class Vault:
    def __init__(self, secret: Any) -> None:
        self.secret = secret

    def get_secret_value(self) -> Any:
        if isinstance(self.secret, Exception):
            raise self.secret
        return self.secret


class Awkward(dict[str, Any]):
    def values(self) -> Any:
        raise RuntimeError


def test_secrets_are_collected_from_structures() -> None:
    settings = Settings(password="first1", key=b"second2", more=pydantic.SecretStr("third3"))  # type: ignore[arg-type,call-arg]
    structure: dict[str, Any] = {
        "a": [Holder(settings), (pydantic.SecretStr("fourth4"),)],
        "b": {"c": frozenset({pydantic.SecretStr("fifth5")})},
        "d": Vault("sixth6"),
        "e": [Vault(ValueError()), Vault(7), Vault(""), Awkward(x=1), "text", Vault, Holder],
    }
    structure["self"] = structure
    expected = ["fifth5", "first1", "fourth4", "second2", "sixth6", "third3"]
    assert sorted(collect_secrets(structure)) == expected
    deep: Any = pydantic.SecretStr("too deep")
    for _ in range(50):
        deep = [deep]
    assert collect_secrets(deep) == []
    assert collect_secrets([[]] * 5 + [list(range(30_000))] + [[n] for n in range(20_000)]) == []
    assert collect_secrets("x") == []


TOKENS = """
password= token: secret api_key Bearer Basic Authorization: Cookie: sk-abcdefghijkl eyJ
*** * -----BEGIN PRIVATE KEY----- -----END --token AKIAABCDEFGHIJKLMNOP x y1 None 12 hunter2
PASSWORD identified by ?sig= SG. api key provided: ://
"""
snippets = st.sampled_from([*TOKENS.split(), *":@&?='\"\\\n,;()[]{}./%"])
texts = st.lists(snippets | st.text(max_size=4), max_size=25).map("".join) | st.text()


@settings(max_examples=500, deadline=None)
@given(texts)
@example("password=password=x")
@example("Authorization: Basic Basic ***")
@example("://a:b@://c:d@")
def test_redaction_is_idempotent(text) -> None:
    once = redact(text)
    assert redact(once) == once


PIECES = [
    *("password=", 'password="', "password='a", 'password=\\"', "password,,,,", "password=,a", "password=)a"),
    *("password='\\", "password \\\\\\", "(('password", "identified by '", "_pass=", "connection   string="),
    *("token: ", "secret", "api key ", "api key provided: ", "--token ", "--a", "a--a", "password" + " " * 9),
    *("://", "://a:b@", "eyJ", "eyJaaaaa.", "-----BEGIN PRIVATE KEY-----"),
    *("Bearer ", "Authorization: ", "Authorization: Basic ", "Cookie: ", "cookie='", "signature="),
    *("sk-", "sk-abcdefghijkl ", "SG.", "SG.aaaaaaaa.", "AKIA", "xoxb-", "gho_", "?key=", "&sig", "12345:A"),
    *("api_key: |\n", " secret: |\n x\n", "eyJaaaaa\n", "password\n input_value=", "password={"),
    *("mysql ", "curl -u a ", "docker login -p", "redis-cli -a", "login a password ", "jdbc:oracle:thin:a/"),
    *("://aaaaaaaaaaaaaaaa1", "?code=a", "basic YTpi ", "the token is ", "credentials a:", "<password>"),
    *("name: password value: ", "self.token=token ", "password: str = ", "insert into t (password) values ("),
    *("[SQL: a [parameters: b\n", "failing row contains (a\n", "password.a\\n input_value="),
    *("'password: |\\n  a\\n", "\\npassword: |\\n", "\\n  a"),
    *("[SQL: password [parameters: 'a' ", "set token a", "password for a: ", "AKIAABCDEFGHIJKLMNOP "),
    *("signature=aaaa+", "1", "a", " ", "\n", "\\", '"', "*"),
]


@pytest.mark.parametrize("piece", PIECES)
def test_hostile_text_takes_linear_time(piece) -> None:
    size = 30_000
    text = "password" + (piece * (size // len(piece) + 1))[:size]
    started = time.process_time()
    redact(text)
    assert time.process_time() - started < 2.0


@pytest.mark.parametrize(
    ("text", "masked"),
    [
        ("Bearer \npassword=correct-horse-battery", "Bearer \npassword=***"),
        ('Authorization: Bearer \napi_key: "correct horse"', 'Authorization: *** \napi_key: "***"'),
        ('Bearer password="correct horse 1"', 'Bearer password="***"'),
        ('Authorization: Token token="correct-horse1"', 'Authorization: *** token="***"'),
        ("Bearer correct=horse1", "Bearer ***"),
        ("Authorization:\n  correct-horse", "Authorization:\n  ***"),
        ("Authorization: Bearer\n  correct-horse", "Authorization: Bearer\n  ***"),
        ("Bearer correcthorsetoken=", "Bearer ***"),
    ],
)
def test_a_token_that_is_missing_does_not_take_the_next_key_for_it(text: str, masked: str) -> None:
    """The mask of a key would leave its value behind, unknown."""
    assert redact(text) == masked
    assert redact(masked) == masked


SECRET = "s3cretPw9x"
SENTENCES = {
    "a refresh token of Google": "refresh 1//0gAbCdEf_ghIJKlmnopQRSTUVwxyz-0123456 done",
    "a key of Mailgun": "key-3ax6xnjp29jd6fds4gc373sgvjxteol0",
    "a key of Mailgun in capitals": "api key-0123456789ABCDEF0123456789ABCDEF failed",
}


@pytest.mark.parametrize("name", SENTENCES)
def test_tokens_with_a_prefix(name: str) -> None:
    kept = [word for word in SENTENCES[name].split() if not re.search(r"1//0|key-", word)]
    assert redact(SENTENCES[name]).replace(MASK, "").split() == kept


@pytest.mark.parametrize(
    "text",
    [
        *("bind_pw: @", "rootpw=@", "ldap://host/?bindpw=@", "LDAP_BINDPW='@'", "DB_PASS=@"),
        *("password%3D@%26user%3Dada", "u=password%3d@", "token%253D@", "client_secret%3A@", "pwd: @"),
        *("q=%22password%22%3A%22@%22", "args=('--token', '@')", "--db-password=@", "password: |\n  @\n"),
        *('["--client-secret","@"]', "['run','--passwd','@']", r"{\"args\": [\"--token\",\"@\"]}"),
        *("['mysql', '-p', '@']", '["-p","@"]', '{\\"args\\": [\\"-p\\", \\"@\\"]}'),
        '{\\"client_secret\\": \\"@\\"}',
    ],
)
def test_secrets_beside_their_names(text: str) -> None:
    text = text.replace("@", SECRET)
    assert SECRET not in redact(text)
    assert redact(redact(text)) == redact(text)


@pytest.mark.parametrize(
    "text",
    [
        *("otp: 123456", "OTP=123456", "OTP 123456", "your otp is 123456", "totp: '123456'", "pin: 4711"),
        *('{"pin": "4711"}', "user_pin=4711", "2fa code: 482910", "mfa_code=482910", "cvv: 123"),
        *("verification code: 482910", "one-time code 482910", "login_code=482910"),
    ],
)
def test_short_codes_beside_digits(text: str) -> None:
    assert not any(letter.isdigit() for letter in redact(text).replace("2fa", ""))


@pytest.mark.parametrize(
    "text",
    [
        *("pin: 3 of 4", "spin: 4711", "pinned: 120", "otp: enabled", "shipping: 123456", "exit_code=137"),
        *("status_code: 503", "zip code: 10115", "opinion: 5500", "['mkdir', '-p', './build']"),
        *("['-p', '8080:80']", "key-value-store-with-a-long-name-01", "https://host/1//0", "input=3"),
    ],
)
def test_what_only_looks_like_a_code(text: str) -> None:
    assert redact(text) is text


@pytest.mark.parametrize(
    ("items", "masked"),
    [
        (["--token", SECRET, "x"], ["--token", MASK, "x"]),
        (("run", "-p", SECRET), ("run", "-p", MASK)),
        (["a", ["--db-password", SECRET]], ["a", ["--db-password", MASK]]),
        (["--api-key", SECRET, "--verbose"], ["--api-key", MASK, "--verbose"]),
        ([f"--token={SECRET}"], [f"--token={MASK}"]),
        (["-p", "8080", "-p", "80:80"], None),
        (["mkdir", "-p", "build"], None),
        (["--token", "--verbose"], None),
        (["--tokens", "4000"], None),
        (["token", "word"], None),
    ],
)
def test_lists_of_arguments(items, masked) -> None:
    assert redact_data(items) == (items if masked is None else masked)
    assert redact_data({"args": items}) == {"args": items if masked is None else masked}


@pytest.mark.parametrize(
    ("name", "value"), [("otp", "482910"), ("pin", 4711), ("user_pin", "4711"), ("cvv", 123)]
)
def test_short_codes_in_structures(name, value) -> None:
    assert redact_data({name: value, "shipping": value}) == {name: MASK, "shipping": value}
    assert redact_data({name: "enabled", "x": True}) == {name: "enabled", "x": True}


ROW = '{"id": 17, "url": "https://example.com/a?b=c", "name": "an ordinary row", "value": 3.14}\n'


@pytest.mark.parametrize("limit", [100, 2_000, 64_000])
def test_the_beginning_of_a_text(limit: int) -> None:
    short = ROW * 10
    assert redact_beginning(short, limit) is short
    text = f"token={SECRET} " + ROW * 10_000
    masked = redact_beginning(text, limit)
    assert masked == redact(text[: limit + 1_000])[:limit] + "…"


@settings(deadline=None, max_examples=20)
@given(st.integers(0, 40_000))
def test_no_half_of_a_secret_remains(before: int) -> None:
    """Wherever the cut is, and however much the masks shorten the text."""
    secret = "sk-" + "Invented0" * 30
    for word in (f"{secret} ", f"{'a' * 40} "):
        text = "x" * before + " " + word * 3_000 + secret * 2_000
        assert "Invented0" not in redact_beginning(text, 2_000)


def test_fifty_million_characters_take_no_time() -> None:
    text = ROW * (50_000_000 // len(ROW))
    error = RuntimeError(text)
    error.body = text.encode()
    began = time.process_time()
    clean = scrub_exception(error)
    assert classify(clean).message
    assert error_context(clean) is not None
    assert partial_output(text).truncated
    assert partial_output({"pages": [text]}).original_size > 50_000_000
    assert classify(text).message
    assert time.process_time() - began < 30  # it took minutes
    assert len(str(clean)) < 1_000_000
