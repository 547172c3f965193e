"""What comes back from the ledger is equal to what went in, or is kept elsewhere."""

from __future__ import annotations

import dataclasses
from datetime import datetime
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import BaseModel

from prefect_resilience import Effect, batch, resilient
from prefect_resilience.durable.effects.policy import MOST_BYTES, pack, pack_told, rebuilt, shown, unpack
from prefect_resilience.effects import Done

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(), inner, max_size=4),
    max_leaves=12,
)


class Receipt(BaseModel):
    id: str
    at: datetime


def receipt() -> Receipt: ...
def receipts() -> dict[str, tuple[Receipt, int]]: ...
def anything() -> Any: ...
def recorded() -> Done: ...
def nothing() -> None: ...
def unhinted(): ...
def unreadable() -> NoSuchThing: ...  # noqa: F821  # type: ignore


RECEIPT = Receipt(id="r1", at=datetime(2026, 11, 1))


@settings(deadline=None)
@given(JSON)
def test_json_comes_back(value):
    packed = pack(value)
    assert packed is not None
    assert packed["as"] == "json"
    assert unpack(packed) == value


@pytest.mark.parametrize(
    ("fn", "value"), [(receipt, RECEIPT), (receipts, {"a": (RECEIPT, 1)}), (receipt, {"id": "x"})]
)
def test_a_return_type_rebuilds_the_value(fn, value):
    packed = pack(value, fn)
    assert packed is not None
    back = unpack(packed, fn)
    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize("fn", [anything, recorded, nothing, unhinted, unreadable, None])
@pytest.mark.parametrize(
    "value",
    [(1, 2), {1: 2}, {1, 2}, RECEIPT, object(), float("nan"), [float("inf")], 10**5_000, 1j],
    ids=lambda value: type(value).__name__,
)
def test_what_json_would_change_is_kept_elsewhere(fn, value):
    assert pack(value, fn) is None


def test_a_return_type_that_is_not_kept_to():
    assert pack((1, 2), receipt) is None
    assert pack({"a": [RECEIPT, 1]}, receipts) is None


def test_what_is_too_long_or_too_deep():
    assert pack("x" * (MOST_BYTES - 2)) is not None
    assert pack("x" * (MOST_BYTES - 1)) is None
    deep: list = []
    for _ in range(300):
        deep = [deep]
    assert pack(deep) is None


def test_a_return_type_that_has_changed():
    packed = pack(RECEIPT, receipt)
    with pytest.raises(LookupError, match="no longer fits"):
        unpack(packed, receipts)
    with pytest.raises(LookupError, match="no longer has a return type"):
        unpack(packed, unhinted)


def test_what_an_operator_sees():
    assert shown(None) is None
    assert shown(pack(RECEIPT, receipt)) == {"id": "r1", "at": "2026-11-01T00:00:00"}
    assert shown({"as": "stored", "ref": "x"}) is None


# -- what somebody else says that the function returned

TOLD = {"id": "r1", "at": "2026-11-01T00:00:00"}


def test_what_a_person_tells_is_made_of_the_return_type():
    packed = pack_told(TOLD)
    assert packed == {"as": "told", "value": TOLD}
    assert unpack(packed, receipt) == RECEIPT
    assert shown(packed) == TOLD
    for fn in (anything, unhinted, unreadable, nothing, None):
        assert unpack(packed, fn) == TOLD
    assert unpack(pack_told(None), receipt) is None
    with pytest.raises(LookupError, match="no longer fits"):
        unpack(pack_told("r1"), receipt)
    assert pack_told(RECEIPT) is None


@pytest.mark.requirement("004.03")
def test_an_answer_becomes_what_the_function_returns_where_it_fits():
    assert rebuilt(TOLD, receipt) == RECEIPT
    assert rebuilt({"a": [TOLD, 1]}, receipts) == {"a": (RECEIPT, 1)}
    for value, fn in [("r1", receipt), (None, receipt), (TOLD, anything), (RECEIPT, receipt), (TOLD, None)]:
        assert rebuilt(value, fn) is value


@dataclasses.dataclass
class Payer:
    """A callable object that cannot be hashed."""

    fails: bool

    def __call__(self, order: int) -> str:
        if self.fails:
            raise ConnectionResetError("no answer")
        return "paid"


@pytest.mark.parametrize("fails", [False, True])
def test_a_callable_object_without_a_hash(fails):
    effect = Effect(key="pay:{order}", verify=lambda key: Done("paid"))
    pay = resilient(effect=effect, retry=None)(Payer(fails))
    for _ in range(2):
        with batch("b"):
            assert pay(1) == "paid"
