"""Keys: the same for equal arguments, in whatever process; another one for others; and what has none."""

import json
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Secret, SecretBytes, SecretStr

from prefect_resilience import ConfigurationError
from prefect_resilience.durable.effects.keys import MadeKey, digest, effect_key
from prefect_resilience.durable.effects.recipes import Continues, Suspect, compared, difference, same_call
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


def test_an_argument_without_a_value_is_one_sentence():
    with pytest.raises(
        ConfigurationError,
        match=r"its parameter 'client' is a object, which has no value that can be compared; write a key "
        r'with the others, such as key="shop.send:{id}"',
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


def recipe(task: str = "shop.send", key: str | None = None, /, **parameters: Any) -> dict[str, Any]:
    """As a later process reads it."""
    made = effect_key(Effect(key=key), task, parameters, "b", hasher=str)
    return json.loads(json.dumps(made.recipe))


def document(key: str, of: dict[str, Any]) -> dict[str, Any]:
    return {"key": key, "recipe": of}


def nothing_gone(_: dict[str, Any]) -> bool:
    return False


def all_gone(_: dict[str, Any]) -> bool:
    return True


def test_one_key_of_two_tasks():
    mine = recipe("shop.post", n=1)
    assert difference(recipe(n=1), mine, ()) == "task"
    assert difference(recipe(n=1), mine, ("shop.post", "shop.send")) is None
    assert difference(recipe(n=1), recipe(n=1), ()) is None


def an_order(**fields: Any) -> Any:
    return type("Order", (), {"lines": [1, 2], **fields})()


@pytest.mark.parametrize(
    ("key", "recorded", "mine", "why"),
    [
        ("k:{o.id}", an_order(id=1), an_order(id=1, seen_at=2), None),
        ("k:{o.id}", an_order(id=1, seen_at=1), an_order(id="1", seen_at=1), "values"),
        ("k:{o[id]}", {"id": 1, "seen_at": 1}, {"id": 1, "seen_at": 2}, None),
        ("k:{o[0]}", [1, "a"], ["1", "a"], "values"),
        ("k:{o.lines[1]}", an_order(), an_order(seen_at=2), None),
        ("k:{o[id]}:{o[n]}", {"id": 1, "n": 2, "x": 1}, {"id": 1, "n": "2", "x": 1}, "values"),
        ("k:{batch_id}", {"id": 1}, {"id": 2}, None),
    ],
)
def test_a_template_compares_the_fields_that_it_names(key, recorded, mine, why):
    before, now = recipe("t", key, o=recorded), recipe("t", key, o=mine)
    assert difference(before, now, ()) == why
    if "{o" in key:
        assert same_call(before, now), "loosely 1 and '1' are the same"
    # Recipes of 0.2 have no fields: the whole argument counts.
    old = {name: part for name, part in before.items() if name != "fields"}
    assert difference(old, now, ()) == difference(now, old, ())
    if "{o" in key and before["args"]["o"]["typed"] is not None:
        assert difference(old, now, ()) == "values"


def test_an_effect_of_a_version_with_another_digest_is_suspect():
    recorded = recipe(when="2026-10-25T02:30:00")
    del recorded["digest"]
    found = compared([document("old", recorded)], recipe(when="2026-10-25T02:30:00"), (), nothing_gone)
    assert isinstance(found, list)
    assert found[0].why == "another version of prefect-resilience made its key"


@pytest.mark.parametrize(
    ("recorded", "mine", "same"),
    [
        ({"n": 1}, {"n": "1"}, True),
        ({"n": 1}, {"n": 1, "note": "x"}, True),
        ({"n": 1, "note": "x"}, {"n": 1, "note": "y"}, False),
        ({"n": 1}, {"order": 1}, True),
        ({}, {"n": 1}, True),
    ],
    ids=repr,
)
def test_whether_a_changed_function_makes_the_recorded_call(recorded, mine, same):
    assert same_call(recipe(**recorded), recipe(**mine)) is same
    assert same_call(recipe(**mine), recipe(**recorded)) is same


def test_the_same_call_under_another_key_is_suspect():
    earlier = [document("old", recipe(n=1)), document("other", recipe(n=2))]
    assert compared(earlier, recipe(n="1"), (), nothing_gone) == [
        Suspect("old", "shop.send", "n was int and is str")
    ]
    assert compared(earlier, recipe(n=3), (), all_gone) == []
    assert compared([], recipe(n=1), ("shop.old",), all_gone) == []


@pytest.mark.parametrize(
    ("recorded", "mine", "why"),
    [
        (recipe("t", n=1), recipe("t", "k:{n}", n=1), "its key was a digest and is k:{n}"),
        (recipe("t", "a:{n}", n=1), recipe("t", n=1), "its key was a:{n} and is a digest"),
        (recipe("t", n=1), recipe("t", n="1", m=2), "n was int and is str"),
        (recipe("t", n=1), recipe("t", n=1, m=2), "the function has a new parameter 'm'"),
        (recipe("t", n=1, m=2), recipe("t", n=1), "the function's parameters changed"),
    ],
)
def test_what_changed(recorded, mine, why):
    assert compared([document("old", recorded)], mine, (), nothing_gone) == [Suspect("old", "t", why)]


def test_a_task_that_is_gone_may_have_been_any_call():
    earlier = [document("old", recipe("shop.old", x=9))]
    assert compared(earlier, recipe(n=1), (), all_gone) == [
        Suspect("old", "shop.old", "its task is no longer in the code")
    ]
    assert compared(earlier, recipe(n=1), (), nothing_gone) == []


def test_a_task_that_was_renamed_goes_on():
    earlier = [document("old 1", recipe("shop.old", n=1)), document("old 2", recipe("shop.old", n=2))]
    was = ("shop.old",)
    assert compared(earlier, recipe(n=1), was, all_gone) == Continues("old 1")
    assert compared(earlier, recipe(n=3), was, all_gone) == []
    assert compared(earlier, recipe(order=1), was, all_gone) == [
        Suspect("old 1", "shop.old", "was= matches more than one of them"),
        Suspect("old 2", "shop.old", "was= matches more than one of them"),
    ]


CALLS = st.dictionaries(st.sampled_from("abc"), st.integers(0, 2) | st.sampled_from("012"), max_size=3)


@settings(deadline=None)
@given(st.lists(st.tuples(st.sampled_from(["t", "u"]), CALLS), max_size=6), CALLS)
def test_whatever_was_recorded(recorded, call):
    """An effect whose arguments all agree is never passed over in silence."""
    earlier = [document(str(n), recipe(task, **args)) for n, (task, args) in enumerate(recorded)]
    mine = recipe("t", **call)
    found = compared(earlier, mine, (), nothing_gone)
    assert isinstance(found, list)
    loosely = {name: str(value) for name, value in call.items()}
    for one in earlier:
        agrees = one["recipe"]["task"] == "t" and set(one["recipe"]["names"]) == set(call)
        args = dict(recorded[int(one["key"])][1])
        if agrees and {name: str(value) for name, value in args.items()} == loosely:
            assert one["key"] in [suspect.key for suspect in found]


def test_two_tasks_that_a_function_made_have_keys_of_their_own():
    made, other = (
        recipe("shop.make.<locals>.send", "a:{n}", n=1),
        recipe("shop.make.<locals>.send", "b:{n}", n=1),
    )
    assert compared([document("a:1", made)], other, (), nothing_gone) == []
    digest = recipe("shop.make.<locals>.send", n=1)
    found = compared([document("x", digest)], other, (), nothing_gone)
    assert isinstance(found, list)
    assert [suspect.key for suspect in found] == ["x"]
