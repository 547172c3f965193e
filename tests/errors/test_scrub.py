"""Exceptions without secrets that are still the exceptions they were."""

import pickle
import subprocess
import traceback
from typing import Any

import httpx
import pydantic
import pytest
import requests
import sqlalchemy
from botocore.exceptions import ClientError
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic_core import PydanticCustomError

from prefect_resilience import classify, register_secret, register_secret_pattern
from prefect_resilience.errors.secrets.scrub import scrub_exception
from tests.errors.by_name import forget_secrets

SECRET = "hunter2-and-more"
LEAK = f"login failed: password={SECRET}"


def everything_said(error: BaseException) -> str:
    """Whatever a person may come to read of an exception: all texts of it and of what hangs on it."""
    texts = [str(error), repr(error), repr(error.args), repr(getattr(error, "__notes__", ""))]
    texts += [
        repr(value) for value in error.__dict__.values() if isinstance(value, str | dict | list | tuple)
    ]
    for linked in (error.__cause__, error.__context__, *getattr(error, "exceptions", ())):
        if linked is not None:
            texts.append(everything_said(linked))
    texts += [repr(error.errors()) + error.json()] if isinstance(error, pydantic.ValidationError) else []
    return "\n".join(texts)


class WithAttributes(Exception):
    def __init__(self, text: str, **attributes: Any) -> None:
        super().__init__(text)
        self.__dict__.update(attributes)


class FromAttribute(Exception):
    def __init__(self, url: str) -> None:
        self.url = url
        super().__init__("x")

    def __str__(self) -> str:
        return f"cannot reach {self.url}"


IN_PLACE: list[BaseException] = [
    ValueError(LEAK),
    KeyError(LEAK),
    ValueError(1, [LEAK, (LEAK,)], {"password": SECRET}),
    ValueError(LEAK.encode()),
    OSError(2, LEAK, f"/tmp/password={SECRET}"),
    FileNotFoundError(2, "no", f"/x?token={SECRET}", None, f"/y?token={SECRET}"),
    SyntaxError(LEAK, ("f.py", 1, 1, LEAK)),
    ImportError(LEAK, name=f"password={SECRET}"),
    SystemExit(LEAK),
    StopIteration(LEAK),
    WithAttributes("x", message=LEAK, body={"token": SECRET}, raw=LEAK.encode(), items=[LEAK]),
    FromAttribute(f"https://u:{SECRET}@host"),
    subprocess.CalledProcessError(1, ["tool", f"--password={SECRET}"], output=LEAK, stderr=LEAK.encode()),
    ClientError({"Error": {"Code": "X", "Message": LEAK}}, "Get"),
    httpx.InvalidURL(LEAK),
    sqlalchemy.exc.OperationalError("select", {"password": SECRET}, Exception(LEAK)),
    requests.ConnectionError(ConnectionError(LEAK)),
    ValueError(httpx.URL(f"https://x/?api_key={SECRET}")),
]


@pytest.mark.parametrize("error", IN_PLACE, ids=lambda error: type(error).__name__)
def test_in_place(error) -> None:
    assert scrub_exception(error) is error
    assert SECRET not in everything_said(error)
    assert SECRET not in "".join(traceback.format_exception(type(error), error, None))
    assert scrub_exception(error) is error


def test_notes_causes_contexts_and_members() -> None:
    inner, context = ValueError(LEAK), KeyError(LEAK)
    inner.__notes__ = [LEAK, "fine"]  # type: ignore[attr-defined]
    outer = RuntimeError("clean")
    outer.__cause__, outer.__context__ = inner, context
    group = ExceptionGroup("several", [outer, ValueError(LEAK)])
    assert scrub_exception(group) is group
    assert SECRET not in everything_said(group)
    assert inner.__notes__[1] == "fine"  # type: ignore[attr-defined]


def test_the_caller_s_own_structures_are_not_changed() -> None:
    parameters = {"password": SECRET}
    scrub_exception(sqlalchemy.exc.OperationalError("select", parameters, Exception("x")))
    scrub_exception(ValueError(parameters))
    assert parameters == {"password": SECRET}


class Login(pydantic.BaseModel):
    user: int
    password: str = pydantic.Field(max_length=3)

    @pydantic.field_validator("user")
    @classmethod
    def check(cls, value: int) -> int:
        if value == 1:
            raise ValueError(LEAK)
        if value == 2:
            raise PydanticCustomError("mine", "custom {what}", {"what": LEAK})
        return value


@pytest.mark.parametrize("user", [1, 2, 3, f"token={SECRET}", {"token": SECRET}, [1]])
def test_a_validation_error_hides_its_inputs(user) -> None:
    error = caught(user, "long " + LEAK)
    error.__notes__ = [LEAK]  # type: ignore[attr-defined]
    error.__cause__ = KeyError("cause")
    clean = scrub_exception(error)
    assert clean is not error
    assert type(clean) is pydantic.ValidationError
    assert SECRET not in everything_said(clean)
    assert clean.title == error.title
    assert [line["type"] for line in clean.errors()] == [line["type"] for line in error.errors()]
    assert [line["loc"] for line in clean.errors()] == [line["loc"] for line in error.errors()]
    assert clean.errors()[-1].get("ctx") == {"max_length": 3}
    assert clean.__traceback__ is error.__traceback__
    assert clean.__cause__ is error.__cause__
    assert classify(clean).category == "invalid"


def caught(user: Any, password: str) -> pydantic.ValidationError:
    with pytest.raises(pydantic.ValidationError) as info:
        Login(user=user, password=password)
    return info.value


def test_a_validation_error_that_cannot_be_made_clean_is_imitated() -> None:
    error = caught(1, "ok")
    register_secret_pattern(r".$")  # matches whatever is left, so no text is ever clean
    try:
        clean = scrub_exception(error)
    finally:
        forget_secrets()
    assert type(clean) is not pydantic.ValidationError
    assert isinstance(clean, ValueError)
    assert type(clean).__name__ == "ValidationError"
    assert SECRET not in str(clean)


def test_a_validation_error_without_secrets_stays() -> None:
    error = caught("bob", "ok")
    assert scrub_exception(error) is error


def test_a_registered_value_cut_short_by_pydantic_is_found() -> None:
    value = "registered-" + "x1y2" * 40
    register_secret(value)
    try:
        error = caught(3, value)
        assert value not in str(error)  # pydantic shows its two ends
        assert value[:20] in str(error)
        assert value[:20] not in str(scrub_exception(error))
    finally:
        forget_secrets()


class Opaque(Exception):
    """Prints what nobody can reach."""

    __slots__ = ()

    def __str__(self) -> str:
        return LEAK

    def __repr__(self) -> str:
        return f"Opaque({LEAK})"


class Choosy(Opaque):
    def __init__(self, one: int, two: int) -> None:
        self.one, self.name = one, f"password={SECRET}"
        self.thing = object()

    def __init_subclass__(cls) -> None:
        raise TypeError("not to be subclassed")


def test_a_stand_in_is_found_by_except() -> None:
    error = Opaque()
    error.__cause__ = ValueError(LEAK)
    error.__notes__ = [LEAK]  # type: ignore[attr-defined]
    clean = scrub_exception(error)
    assert clean is not error
    assert isinstance(clean, Opaque)
    assert type(clean).__qualname__ == "Opaque"
    assert SECRET not in everything_said(clean)
    again = pickle.loads(pickle.dumps(clean))
    assert (str(again), repr(again)) == (str(clean), repr(clean))
    choosy = scrub_exception(Choosy(1, 2))
    assert isinstance(choosy, Opaque)
    assert type(choosy).__name__ == "Choosy"
    assert choosy.one == 1  # type: ignore[attr-defined]
    assert SECRET not in everything_said(choosy)


def test_a_stand_in_takes_its_place_everywhere() -> None:
    bad = Opaque()
    outer, other = RuntimeError("x", bad), WithAttributes("y", orig=bad)
    outer.__cause__ = outer.__context__ = bad
    other.__context__ = bad
    other.__suppress_context__ = True
    outer.__notes__ = ["kept"]  # type: ignore[attr-defined]
    group = ExceptionGroup("fine", [outer, bad, ExceptionGroup("inner", [bad, other])])
    clean = scrub_exception(group)
    assert type(clean) is ExceptionGroup
    assert SECRET not in everything_said(clean)
    assert SECRET not in repr(outer.args) + repr(other.__dict__)
    assert outer.__suppress_context__
    assert other.__suppress_context__
    assert SECRET not in "".join(traceback.format_exception(type(clean), clean, None))


class OddGroup(ExceptionGroup[Exception]):
    def __new__(cls, number: int) -> Any:
        return super().__new__(cls, f"{number} {LEAK}", [ValueError("x")])

    def __init__(self, number: int) -> None: ...


def test_a_group_s_message() -> None:
    clean = scrub_exception(ExceptionGroup(LEAK, [ValueError("x")]))
    assert str(clean) == "login failed: password=*** (1 sub-exception)"
    odd = scrub_exception(OddGroup(3))
    assert SECRET not in str(odd) + repr(odd)


class Fighting(Exception):
    def __str__(self) -> str:
        raise RuntimeError

    __repr__ = __str__


class ReadOnly(Exception):
    text = property(lambda self: LEAK)


class BadSlot(Exception):
    def __setattr__(self, name: str, value: Any) -> None:
        raise TypeError

    def __init__(self) -> None:
        self.__dict__["message"] = LEAK
        self.__dict__["child"] = Opaque()


def test_it_never_raises() -> None:
    clean = scrub_exception(Fighting("x"))
    assert isinstance(clean, Fighting)
    assert str(clean) == "<Fighting>"
    assert repr(clean) == "Fighting()"
    assert scrub_exception(ReadOnly("x")).args == ("x",)
    assert isinstance(scrub_exception(BadSlot()), BadSlot)
    noted = Opaque()
    noted.__notes__ = [Fighting(), 3]  # type: ignore[attr-defined]
    assert scrub_exception(noted).__notes__ == ["<Fighting>", "3"]  # type: ignore[attr-defined]
    no_notes = ValueError(LEAK)
    no_notes.__notes__ = "not a list"  # type: ignore[attr-defined]
    assert SECRET not in str(scrub_exception(no_notes))


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from([ValueError, KeyError, OSError, WithAttributes, Opaque, SystemExit]),
    st.lists(st.text() | st.just(LEAK) | st.binary() | st.lists(st.just(LEAK)), min_size=1, max_size=3),
)
def test_nothing_comes_through(cls, args) -> None:
    error = cls.__new__(cls, *args)
    BaseException.__init__(error, *args)
    clean = scrub_exception(error)
    assert SECRET not in everything_said(clean)
    assert isinstance(clean, cls)
