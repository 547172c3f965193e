"""Helpers that every room uses: texts, options that were not given, blocks, sentences about mistakes."""

import asyncio
import pickle
import time
from collections.abc import Callable
from datetime import datetime, timedelta, timezone
from types import SimpleNamespace
from typing import Any

import pytest
from pydantic import Field, SecretStr

from prefect_resilience import Bulkhead, CircuitBreaker
from prefect_resilience.base.drive import Signal, adrive, drive
from prefect_resilience.base.naming import UNSET, fill
from prefect_resilience.base.policy import Policy
from prefect_resilience.base.text import Regex, code_cell, utc_text
from prefect_resilience.errors.exceptions import ConfigurationError


class Crew(Policy):
    names: tuple[str, ...] = Field(min_length=1)


def test_an_option_that_was_not_given_and_an_unused_expression_can_be_pickled() -> None:
    unset, letters = pickle.loads(pickle.dumps((UNSET, Regex("[a-z]+"))))
    assert (unset is UNSET, repr(UNSET), letters.sub("*", "ABc")) == (True, "unset", "AB*")


def test_a_mistake_without_words_of_ours_is_told_in_pydantics() -> None:
    with pytest.raises(ConfigurationError, match=r"Crew\(names=\(\)\): tuple should have at least 1 item"):
        Crew(names=())


@pytest.mark.parametrize(
    ("moment", "text"),
    [
        (None, ""),
        (0, "1970-01-01 00:00:00 UTC"),
        (datetime(2026, 11, 20, 19, tzinfo=timezone(timedelta(hours=1))), "2026-11-20 18:00:00 UTC"),
    ],
)
def test_a_time_in_utc(moment: datetime | float | None, text: str) -> None:
    assert utc_text(moment) == text


def test_code_in_a_cell_does_not_end_the_cell() -> None:
    assert code_cell("a | `b`\n c") == "`a ¦ 'b' c`"


def test_blocks_may_end_in_another_order_than_they_began() -> None:
    first, second = Bulkhead(1), Bulkhead(1)
    first.__enter__()
    second.__enter__()
    first.__exit__(None, None, None)
    second.__exit__(None, None, None)
    with first, second:  # both are free again
        pass
    with pytest.raises(RuntimeError, match="ended in a different context"):
        first.__exit__(None, None, None)


@pytest.mark.parametrize(
    ("name", "parameters"),
    [
        ("llm:{api_key}", {"api_key": "sk-one"}),
        ("llm:{key}", {"key": SecretStr("sk-one")}),
        ("llm:{config.token}", {"config": SimpleNamespace(token="sk-one")}),
        ("llm:{config[client_secret]}", {"config": {"client_secret": "sk-one"}}),
        ("llm:{config.key}", {"config": SimpleNamespace(key=SecretStr("sk-one"))}),
        ("llm:{password!r:>3}", {"password": "sk-one"}),
    ],
)
def test_a_secret_in_a_name_is_a_digest_that_is_the_same_in_every_process(name, parameters) -> None:
    assert fill(name, parameters, "circuit").replace("'", "") == "llm:hidden-237315f4f2b49be1"


@pytest.mark.parametrize(
    ("name", "value", "shown"),
    [
        ("db:{x}", "postgresql://app:{}@db/x", "db:postgresql://app:***@db/x~hidden-"),
        ("db:{x.url}", "redis://:{}@cache", "db:redis://:***@cache~hidden-"),
        ("api:{x!s}", "https://host/?sig={}", "api:https://host/?sig=***~hidden-"),
        ("api:{x[0]}", "Authorization: Bearer {}", "api:Authorization: Bearer ***~hidden-"),
        ("sql:{x}", "Server=db;Pwd={};", "sql:Server=db;Pwd=***;~hidden-"),
    ],
)
def test_a_secret_inside_of_a_value_is_masked_and_tells_names_apart(name, value, shown) -> None:
    def named(secret):
        text = value.format(secret)
        found = {"db:{x.url}": SimpleNamespace(url=text), "api:{x[0]}": [text]}.get(name, text)
        return fill(name, {"x": found}, "circuit")

    names = [named(secret) for secret in ("hunter22hunter", "hunter23hunter", "hunter22hunter")]
    assert names[0] == names[2] != names[1]
    assert all(each.startswith(shown) for each in names)


@pytest.mark.parametrize("value", ["sk-one", "postgresql://app:hunter22hunter@db/x"])
def test_a_batch_has_the_name_that_older_versions_gave_it(value) -> None:
    """Under another name its effects would be sent again."""
    assert fill("pay:{token}", {"token": value}, "batch") == f"pay:{value}"


def test_a_circuit_and_a_limit_show_no_secret() -> None:
    for guard in (CircuitBreaker("llm:{api_key}"), Bulkhead(3, name="llm:{api_key}")):
        assert "sk-one" not in repr(guard.bind({"api_key": "sk-one"}))
        assert guard.bind({"api_key": "sk-one"}).name == guard.bind({"api_key": SecretStr("sk-one")}).name


@pytest.mark.parametrize("drives", [drive, lambda steps: asyncio.run(adrive(steps))], ids=["sync", "async"])
def test_a_signal_that_came_before_the_wait_ends_it_at_once(drives: Callable[..., Any]) -> None:
    signal = Signal()
    signal.wake()
    began = time.monotonic()
    drives(signal.wait(3600))
    assert time.monotonic() - began < 60
