"""Keys: the same for equal arguments, in whatever process; another one for others; and what has none."""

from __future__ import annotations

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Secret, SecretBytes, SecretStr

from prefect_resilience import ConfigurationError
from prefect_resilience.durable.effects.keys import MadeKey, digest, effect_key
from prefect_resilience.effects import Effect


class Address(BaseModel):
    street: str


def hasher(text: str) -> str:
    return digest(["a key of this ledger", text])


def made(effect: Effect, parameters: dict, batch_id: str = "b", task: str = "shop.send", fn=None) -> MadeKey:
    return effect_key(effect, task, parameters, batch_id, fn=fn, hasher=hasher)


def key(effect: Effect, parameters: dict, batch_id: str = "b", **more: Any) -> str:
    return made(effect, parameters, batch_id, **more).key


def test_a_template():
    assert key(Effect(key="invoice:{order_id}"), {"order_id": 17}) == "invoice:17"
    assert key(Effect(key="{batch_id}/{to.street}"), {"to": Address(street="x")}) == "b/x"
    assert key(Effect(key="an {x}"), {"x": "ä%\n"}) == "an%20%C3%A4%25%0A"
    assert key(Effect(key="{n:03d}:{x!r}"), {"n": 7, "x": "a:b"}) == "007:'a%3Ab'"
    assert len(key(Effect(key="{x}"), {"x": "y" * 5_000})) == 200


def test_what_is_filled_in_is_escaped():
    assert key(Effect(key="{a}-{b}~"), {"a": "x-", "b": "~"}) == "x%2D-%7E~"
    texts = st.text(alphabet="a:-~% ä\ud800", max_size=6)

    @settings(deadline=None)
    @given(st.tuples(texts, texts), st.tuples(texts, texts))
    def tried(one, other):
        for template in ("{a}:{b}", "{a}-{b}", "{a}~ {b}", "k%{a}%{b}", "{a}{{}}{b}"):
            keys = {key(Effect(key=template), {"a": a, "b": b}) for a, b in (one, other)}
            assert len(keys) == len({one, other})

    tried()


def test_a_default_that_is_no_different_does_not_count():
    def written(order):
        return order

    def later(order, currency="EUR", note=None, rate=1.0):
        return order, currency, note, rate

    for fn in (written, later):
        fn.__qualname__ = "send"
    plain = key(Effect(), {"order": 7}, fn=written)
    given = {"order": 7, "currency": "EUR", "note": None, "rate": 1.0}
    assert key(Effect(), given, fn=later) == plain
    assert key(Effect(), {**given, "currency": "USD"}, fn=later) != plain
    assert key(Effect(), {**given, "rate": 1}, fn=later) != plain, "another type is another value"
    assert key(Effect(), given) != plain, "without the function nothing is known of its defaults"
    assert made(Effect(), given, fn=later).recipe["args"]["currency"]["default"] is True
    assert "default" not in made(Effect(), given, fn=later).recipe["args"]["order"]


def test_a_default_that_cannot_be_compared_counts():
    class Odd:
        def __eq__(self, other):
            raise RuntimeError("no")

    def send(order, odd=Odd()):  # noqa: B008
        return order, odd

    send.__qualname__ = "send"
    assert key(Effect(), {"order": 7, "odd": send.__defaults__[0]}, fn=send), "it is the very default"
    with pytest.raises(ConfigurationError, match="its parameter 'odd' is a Odd"):
        key(Effect(), {"order": 7, "odd": Odd()}, fn=send)


def test_a_recipe_has_the_fields_of_the_template_and_the_version_of_its_digest():
    recipe = made(Effect(key="{to.street}:{n:03d}:{batch_id}"), {"to": Address(street="x"), "n": 7}).recipe
    assert recipe["digest"] == 2
    assert {name: field["type"] for name, field in recipe["fields"].items()} == {
        "to.street": "str",
        "n": "int",
    }
    assert recipe["fields"]["n"] == recipe["args"]["n"]
    assert "fields" not in made(Effect(), {"n": 7}).recipe


def test_an_argument_without_a_value_is_one_sentence():
    with pytest.raises(
        ConfigurationError,
        match=r"its parameter 'client' is a object, which has no value that can be compared; write a key "
        r'with the others, such as Effect\(key="shop.send:{id}"\)',
    ):
        key(Effect(), {"client": object()})
    assert key(Effect(key="k:{n}"), {"client": object(), "n": 1}) == "k:1"
    with pytest.raises(ConfigurationError, match="unknown parameter 'm'"):
        key(Effect(key="k:{m}"), {"n": 1})
    deep: list = []
    deep.append(deep)
    with pytest.raises(ConfigurationError, match="its parameter 'deep' is nested more than 100"):
        key(Effect(), {"deep": deep})


def test_a_recipe_is_json_and_holds_no_argument():
    def send(order, amount, token, client, note="x"):
        return order, amount, token, client, note

    send.__qualname__ = "send"
    given = {
        "order": 17,
        "amount": Decimal("1.50"),
        "token": SecretStr("hunter2"),
        "client": object(),
        "note": "x",
    }
    recipe = made(Effect(key="pay:{order}"), given, fn=send).recipe
    assert json.loads(json.dumps(recipe)) == recipe
    assert (recipe["task"], recipe["template"]) == ("shop.send", "pay:{order}")
    assert recipe["names"] == ["order", "amount", "token", "client", "note"]
    assert recipe["args"]["client"] == {"type": "object", "typed": None, "loose": None}
    assert [name for name, arg in recipe["args"].items() if arg.get("key")] == ["order"]
    assert [name for name, arg in recipe["args"].items() if arg.get("default")] == ["note"]
    assert "hunter2" not in json.dumps(recipe)
    text = made(Effect(key="pay:{order}"), {**given, "order": "17"}, fn=send).recipe
    assert text["args"]["order"]["typed"] != recipe["args"]["order"]["typed"]
    assert text["args"]["order"]["loose"] == recipe["args"]["order"]["loose"]


SECRETS = [SecretStr, lambda text: SecretBytes(text.encode()), Secret[str]]


@pytest.mark.parametrize("secret", SECRETS)
@pytest.mark.parametrize("template", [None, "send:{token}", "{token!s}", "{token!r}", "{token!a:>4}"])
def test_a_secret_counts_by_a_keyed_hash(secret, template):
    effect = Effect(key=template)
    one, other = (key(effect, {"token": secret(text)}) for text in ("hunter2", "hunter3"))
    assert one != other
    assert one == key(effect, {"token": secret("hunter2")})
    assert "hunter" not in one
    assert "*" not in one
    elsewhere = effect_key(
        effect, "shop.send", {"token": secret("hunter2")}, "b", hasher=lambda text: "0" * 64
    )
    assert elsewhere.key != one
