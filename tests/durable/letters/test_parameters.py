"""Parameters come back equal from what a store keeps of them, and secrets do not get there."""

import ipaddress
import json
import math
import pathlib
from collections import deque
from dataclasses import dataclass
from datetime import date, datetime, time, timedelta, timezone
from decimal import Decimal
from fractions import Fraction
from types import MappingProxyType
from typing import Any
from zoneinfo import ZoneInfo

import numpy
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel, Secret, SecretBytes, SecretStr

from prefect_resilience.durable.letters.codec import KIND, LeftOut, Reader, encode_parameters, of_text
from prefect_resilience.durable.letters.kinds import DeadLetterError
from prefect_resilience.errors.secrets.redact import register_secret
from tests.durable.letters import shop

BERLIN = ZoneInfo("Europe/Berlin")


def comes_back(value: Any) -> Any:
    encoded = encode_parameters({"value": value})
    assert encoded.left_out == ()
    back = Reader().parameters(json.loads(json.dumps(encoded.parameters, allow_nan=False)))["value"]
    assert type(back) is type(value)
    assert back == value
    return back


@pytest.mark.parametrize("value", [numpy.arange(3), numpy.float32(1.1), shop.Attrs("a")], ids=repr)
def test_objects_of_other_libraries_are_left_out_and_the_letter_says_so(value: Any) -> None:
    (one,) = encode_parameters({"value": value}).left_out
    assert (one.path, one.why) == ("value", "unknown kind")
    assert one.type == f"{type(value).__module__}.{type(value).__qualname__}"


ORDER = shop.Order(
    id=7,
    items=[shop.Item(sku="a", price=Decimal("1.10"), tags=frozenset({"x", "y"}))],
    placed=datetime(2026, 11, 20, 18, tzinfo=BERLIN),
    note={"gift": (1, 2)},
)


@pytest.mark.parametrize(
    "value",
    [
        -(10**400),
        -0.0,
        math.inf,
        "a\0b\ud800ü😀",
        bytearray(b"\xff\0"),
        frozenset({(1, 2), "x"}),
        {1: "one", "1": "text", None: 0, (1, 2): [], 2.5: b"x", date(2026, 1, 1): 1},
        {KIND: "trap"},
        {"a": {"b": {"c": [1, {"d": (1,)}]}}},
        datetime(2026, 10, 25, 2, 30, fold=1, tzinfo=BERLIN),
        datetime(2026, 11, 20, tzinfo=timezone(timedelta(hours=-3, minutes=-30, seconds=7))),
        datetime.max,
        time(23, 59, 59, 999999, tzinfo=timezone(timedelta(hours=2)), fold=1),
        timedelta.max,
        BERLIN,
        Decimal("-Infinity"),
        pathlib.PurePosixPath("/a/b"),
        pathlib.PureWindowsPath("c:/a"),
        pathlib.Path("a"),
        ipaddress.ip_interface("10.0.0.1/8"),
        ipaddress.ip_network("10.0.0.0/8"),
        pydantic.HttpUrl("https://example.com/a?b=c"),
        pydantic.TypeAdapter(pydantic.PostgresDsn).validate_python("postgresql://db.example.com/x"),
        shop.Level.HIGH,
        shop.Right.READ | shop.Right.WRITE,
        shop.Right(0),
        shop.Point(1.0, math.inf, {1: "a"}),
        shop.Slotted("a", [shop.Point(0, 0), (1,)]),
        shop.Checked(3),
        shop.Card(1, "visa"),
        shop.Plain(1, (2,)),
        ORDER,
        [ORDER, {"deep": (ORDER,)}],
        shop.Owner(pet=shop.Dog(name="Bello"), firstName="Ada"),
        shop.Owner(pet=shop.Puppy(name="Bello", weeks=3), firstName="Ada"),
        shop.Page[shop.Item](items=[shop.Item(sku="a", price=Decimal(1))], after=None),
        shop.Page[shop.Page[int]](items=[shop.Page[int](items=[2])]),
        shop.Page(items=["any", b"thing"]),
        shop.Numbers([1, 2]),
        shop.Outside.Inside(z=1),
        shop.Kept(a=1, b=Decimal(2)),
        shop.Tree(1, [shop.Tree(b"x", [shop.Tree({"a": 1})])]),
        bytes(range(256)) * 4096,
    ],
    ids=lambda value: type(value).__name__,
)
def test_comes_back_equal(value: Any) -> None:
    comes_back(value)


plain = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text() | st.binary()
scalars = (
    plain
    | st.datetimes(timezones=st.none() | st.timezones())
    | st.dates()
    | st.times()
    | st.timedeltas()
    | st.uuids()
    | st.decimals(allow_nan=False)
    | st.ip_addresses()
    | st.sampled_from(shop.Colour)
)
hashable = st.recursive(scalars, lambda inner: st.tuples(inner, inner) | st.frozensets(inner, max_size=3))


def containers(inner: Any) -> Any:
    return (
        st.lists(inner, max_size=4)
        | st.tuples(inner, inner)
        | st.dictionaries(st.text(), inner, max_size=4)
        | st.dictionaries(hashable, inner, max_size=3)
        | st.sets(hashable, max_size=3)
        | st.builds(shop.Slotted, st.text(), st.lists(inner, max_size=2))
        | st.builds(shop.Plain, inner, inner)
    )


@settings(deadline=None, max_examples=60)
@given(st.recursive(scalars, containers, max_leaves=12))
def test_whatever_it_is_it_comes_back_equal_or_is_said_to_be_missing(value: Any) -> None:
    encoded = encode_parameters({"value": value})
    back = Reader().parameters(json.loads(json.dumps(encoded.parameters, allow_nan=False)))["value"]
    if encoded.left_out:  # a text may look like a secret by chance
        assert {one.why for one in encoded.left_out} == {"secret"}
    else:
        assert back == value
        assert type(back) is type(value)


# -- secrets

SECRETS = ["hunter2-hunter2", "sk-ant-REDACTED", "s3cr3t-of-the-block"]


def test_no_secret_is_in_the_json_and_the_rest_is() -> None:
    register_secret(SECRETS[2])
    parameters = {
        "password": SECRETS[0],
        "config": {
            "api_key": SECRETS[1],
            "retries": 3,
            "hosts": [f"https://u:{SECRETS[0]}@db.example.com/x"],
        },
        "customer": shop.Customer(name="Ada", api_key=SecretStr(SECRETS[0]), password=SECRETS[1]),
        "held": SecretBytes(SECRETS[0].encode()),
        "wrapped": Secret(SECRETS[0]),
        "text": f"use {SECRETS[2]} there",
        "raw": f"use {SECRETS[2]} there".encode(),
        "path": pathlib.PurePosixPath(f"/{SECRETS[2]}/x"),
        "credentials": ["ada", SECRETS[0]],
        "by_key": {SECRETS[2]: 1},
        "by_number": {1: SECRETS[2], (SECRETS[2], 1): 2},
        "url": pydantic.AnyUrl(f"https://ada:{SECRETS[0]}@example.com/"),
        "note": "order 7",
        "max_token": 5,
        "token": "",
    }
    encoded = encode_parameters(parameters)
    text = json.dumps(encoded.parameters) + repr(encoded.left_out)
    for secret in SECRETS:
        assert secret not in text
    assert {one.path for one in encoded.left_out} == {
        "password",
        "config.api_key",
        "config.hosts.0",
        "customer.api_key",
        "customer.password",
        "held",
        "wrapped",
        "text",
        "raw",
        "path",
        "credentials",
        "by_key",
        "by_number",
        "url",
    }
    assert {one.why for one in encoded.left_out} == {"secret"}
    back = Reader().parameters(encoded.parameters)
    assert (back["note"], back["config"]["retries"], back["customer"].name) == ("order 7", 3, "Ada")
    assert (back["max_token"], back["token"]) == (5, "")
    assert back["password"] == LeftOut(path="password", why="secret", type="str")
    assert back["config"]["hosts"][0].hint == "https://u:***@db.example.com/x"


def test_names_that_say_it_and_those_that_do_not() -> None:
    text = "hunter2-hunter2"
    secret: dict[str, Any] = {
        "passwords": {text},
        "api_keys": [text],
        "refreshTokens": (text,),
        "jwt": text,
        "cardCVV": 123,
        "pin": 1234,
        "db_password": 123456,
        "otp": Decimal(5),
        "auth": ("ada", text),
        "proxy_auth": ["ada", text],
    }
    plain: dict[str, Any] = {
        "tokens": ["a", "b"],
        "max_tokens": 512,
        "author": "ada",
        "spinning": 3,
        "pin_count": 4,
        "password_changed": True,
        "pin_known": True,
        "auth": "basic",
    }
    encoded = encode_parameters({"given": secret, "plain": plain})
    assert text not in json.dumps(encoded.parameters)
    assert {one.path for one in encoded.left_out} == {f"given.{name}" for name in secret}
    assert encode_parameters({"logins": {"password": True}}).left_out == ()
    values = {"given.pin": "1234", "given.otp": "5", "given.cardCVV": "123"}
    back = Reader(values=values).parameters(encoded.parameters)
    assert back["plain"] == plain
    given = back["given"]
    assert (given["pin"], given["otp"], given["cardCVV"]) == (1234, Decimal(5), 123)


def test_what_is_inside_itself_or_too_deep_is_said_to_be() -> None:
    tree = shop.Tree(1)
    tree.children.append(tree)
    same = [1]
    encoded = encode_parameters({"tree": tree, "twice": [same, same], "n": 1})
    assert [(one.path, one.why) for one in encoded.left_out] == [("tree.children.0", "inside itself")]
    assert Reader().parameters(encoded.parameters)["twice"] == [same, same]
    deep: list[Any] = []
    for _ in range(5_000):
        deep = [deep]
    (missing,) = encode_parameters({"deep": deep}).left_out
    assert missing.why == "too deep"


def test_what_was_left_out_is_given_back_in_its_place() -> None:
    customer = shop.Customer(name="Ada", api_key=SecretStr("a-b-c-d"), password="e-f-g-h")
    parameters = {"customers": [customer], "raw_password": b"x" * 8, "held": SecretBytes(b"yyyy")}
    values = {"customers.0.api_key": "a-b-c-d", "customers.0.password": "e-f-g-h"}
    reader = Reader(values={**values, "raw_password": "x" * 8, "held": "yyyy"})
    assert reader.parameters(encode_parameters(parameters).parameters) == parameters
    assert reader.missing == []
    reader = Reader(values=values)
    reader.parameters(encode_parameters(parameters).parameters)
    assert [one.path for one in reader.missing] == ["raw_password", "held"]
    assert of_text("x", "pydantic.types.Secret") == Secret("x")
    assert of_text(5, "pydantic.types.SecretStr") == 5


# -- what cannot be kept


def test_what_is_no_data_is_left_out_and_nothing_else() -> None:
    loop: list[Any] = []
    loop.append(loop)
    parameters = {
        "handle": object(),
        "inside": {"handle": shop.NotData(), "n": 1},
        "loop": loop,
        "function": test_what_is_no_data_is_left_out_and_nothing_else,
        "class": dict,
        "mapping": type("Odd", (dict,), {"items": None}),
        "n": 1,
    }
    encoded = encode_parameters(parameters)
    assert [one.path for one in encoded.left_out][:2] == ["handle", "inside.handle"]
    whys = {one.path: one.why for one in encoded.left_out}
    assert whys.pop("loop.0") == "inside itself"
    assert set(whys.values()) == {"unknown kind"}
    assert encoded.left_out[1].type.endswith("shop.NotData")
    assert encoded.parameters["n"] == 1
    assert Reader().parameters(encoded.parameters)["inside"]["n"] == 1


class Nanoseconds(datetime):
    extra = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Nanoseconds)

    __hash__ = datetime.__hash__


class Raises(timedelta):
    def __eq__(self, other: object) -> bool:
        raise RuntimeError("no")

    __hash__ = timedelta.__hash__


@dataclass
class Taxed:
    price: float

    def __post_init__(self) -> None:
        self.price *= 1.19


class Lookalike(dict[str, Any]):
    def items(self) -> Any:
        raise RuntimeError("no")


def test_what_would_come_back_unequal_is_left_out() -> None:
    stranger = object.__new__(shop.Colour)  # as a `_missing_` may make one
    stranger._name_, stranger._value_ = "BLUE", "b"
    proxy = MappingProxyType({"a": 1})
    for value in (
        stranger,
        proxy,
        Nanoseconds(2026, 1, 1),
        Raises(1),
        Lookalike(a=1),
        Taxed(10.0),
        memoryview(b"x"),
        ("a", {object(): 1}),
        Fraction(1, 3),
        complex(1),
        range(3),
        deque([1]),
        10**5000,
    ):
        assert [one.why for one in encode_parameters({"value": value}).left_out] == ["unknown kind"]


def test_too_large_parameters_make_room_for_the_others() -> None:
    encoded = encode_parameters({"a": "x" * 400, "b": "y" * 700, "c": 1}, largest=1000)
    assert [(one.path, one.why) for one in encoded.left_out] == [("b", "too large")]
    assert encoded.parameters["a"] == "x" * 400
    assert encoded.size <= 1000
    assert len(encode_parameters({"a": 1, "b": 2}, largest=0).left_out) == 2
    large = {"a": b"x" * 2_000_000, "b": ["\0" * 999_000], "c": list(range(300_000))}
    encoded = encode_parameters(large, largest=1_000_000)
    assert [one.why for one in encoded.left_out] == ["too large"] * 3


# -- reading is safe


SHOP = "tests.durable.letters.shop:"


@pytest.mark.parametrize(
    ("encoded", "says"),
    [
        ({KIND: "pickle", "value": "gASVAAAA"}, "unknown kind of value 'pickle'"),
        ({KIND: "model", "class": "os:system", "fields": {}, "set": []}, "is not read"),
        ({KIND: "model", "class": "builtins:eval", "fields": {}, "set": []}, "is not read"),
        ({KIND: "dataclass", "class": "subprocess:Popen", "fields": {"args": "ls"}}, "is not read"),
        ({KIND: "model", "class": "no_such_module:X", "fields": {}, "set": []}, "cannot be imported"),
        ({KIND: "model", "class": SHOP + "Gone", "fields": {}, "set": []}, "the class Gone no longer exists"),
        ({KIND: "url", "value": ["SecretStr", "x"]}, "unknown kind of value 'SecretStr'"),
        ({KIND: "datetime", "value": ["x", 0, None]}, "Invalid isoformat"),
        ({KIND: "model", "class": SHOP + "Item", "fields": {"sku": "a"}, "set": []}, "a new field 'price'"),
        (
            {KIND: "model", "class": SHOP + "Item", "fields": {"colour": 1}, "set": []},
            "no longer has the field 'colour'",
        ),
        ({KIND: "model", "class": SHOP + "Point", "fields": {}, "set": []}, "is no model, so it is not read"),
        ({KIND: "deque", "value": [1]}, "unknown kind of value 'deque'"),
        ({KIND: "dataclass", "class": SHOP + "Point", "fields": {}}, "missing 2 required .* 'x' and 'y'"),
        (
            {KIND: "dataclass", "class": SHOP + "Slotted", "fields": {"name": "", "z": 1}},
            "unexpected keyword argument 'z'",
        ),
        ({KIND: "namedtuple", "class": SHOP + "Card", "fields": {"a": 1}}, "unexpected keyword argument 'a'"),
    ],
)
def test_what_cannot_be_read_says_why(encoded: Any, says: str) -> None:
    with pytest.raises(DeadLetterError, match=says) as raised:
        Reader().parameters({"order": encoded})
    assert "the parameter 'order' cannot be read" in str(raised.value)


def test_an_object_of_a_class_that_no_import_finds_is_left_out() -> None:
    class Local(BaseModel):
        n: int

    assert [one.why for one in encode_parameters({"value": Local(n=1)}).left_out] == ["unknown kind"]


@pytest.mark.parametrize(
    ("arguments", "places"),
    [
        (["--token", "s3cretPw9"], ["value.1"]),
        (("mysql", "-p", "s3cretPw9"), ["value.2"]),
        (["run", ["--db-password", "s3cretPw9"], "x"], ["value.1.1"]),
        (["--token=s3cretPw9"], ["value.0"]),
        (["-p", "8080", "--verbose", "--tokens", "4000"], []),
        (["mkdir", "-p", "build"], []),
    ],
)
def test_secrets_in_lists_of_arguments(arguments, places) -> None:
    encoded = encode_parameters({"value": arguments})
    assert [one.path for one in encoded.left_out] == places
    assert "s3cretPw9" not in json.dumps(encoded.parameters)
