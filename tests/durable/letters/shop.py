"""Classes and tasks such as a user's module has them."""

from __future__ import annotations

import os
from collections import namedtuple
from dataclasses import dataclass, field
from datetime import datetime
from decimal import Decimal
from enum import Enum, Flag, IntEnum
from functools import cached_property
from typing import Annotated, Any, Generic, Literal, NamedTuple, TypeVar

import attrs
import httpx
from prefect import task
from pydantic import BaseModel, ConfigDict, Field, PrivateAttr, RootModel, SecretStr, field_validator
from pydantic.dataclasses import dataclass as pydantic_dataclass

from prefect_resilience import Backoff, Effect, Retry, resilient_task
from prefect_resilience.tasks.edge.run_hooks import dead_letter


class Colour(Enum):
    RED = "r"
    GREEN = "g"


class Level(IntEnum):
    LOW = 1
    HIGH = 2


class Right(Flag):
    READ = 1
    WRITE = 2


class Item(BaseModel):
    sku: str
    price: Decimal
    tags: frozenset[str] = frozenset()


class Order(BaseModel):
    model_config = ConfigDict(extra="allow")
    id: int
    items: list[Item]
    placed: datetime | None = None
    colour: Colour = Colour.RED
    _attempt: int = PrivateAttr(default=0)
    _client: Any = PrivateAttr(default=None)

    @field_validator("id")
    @classmethod
    def _refuses(cls, given: int) -> int:
        raise_if_asked()
        return given

    @cached_property
    def total(self) -> Decimal:
        return sum((item.price for item in self.items), Decimal(0))


def raise_if_asked() -> None:
    if os.environ.get("SHOP_REFUSES"):
        raise AssertionError("reading a letter must run no validator")


class Customer(BaseModel):
    name: str
    api_key: SecretStr
    password: str = ""


class Cat(BaseModel):
    kind: Literal["cat"] = "cat"
    lives: int = 9


class Dog(BaseModel):
    kind: Literal["dog"] = "dog"
    name: str


class Puppy(Dog):
    weeks: int


class Owner(BaseModel):
    model_config = ConfigDict(populate_by_name=True)
    pet: Annotated[Cat | Dog, Field(discriminator="kind")]
    first_name: str = Field(alias="firstName")


T = TypeVar("T")


class Page(BaseModel, Generic[T]):
    items: list[T]
    after: T | None = None


class Numbers(RootModel[list[int]]):
    pass


class Outside:
    class Inside(BaseModel):
        z: int


@dataclass(kw_only=True, frozen=True)
class Kept:
    a: int
    b: Decimal


@dataclass
class Tree:
    value: Any
    children: list[Tree] = field(default_factory=list)


class Card(NamedTuple):
    number: int
    kind: str


Plain = namedtuple("Plain", "a b")


@dataclass(frozen=True)
class Point:
    x: float
    y: float
    labels: dict[int, str] = field(default_factory=dict)


@dataclass(slots=True)
class Slotted:
    name: str
    parts: list[Any] = field(default_factory=list)


@dataclass(slots=True)
class Late:
    since: int = 2026
    known: int = field(init=False)


@pydantic_dataclass
class Checked:
    size: int


@attrs.define
class Attrs:
    name: str
    count: int = 0


class NotData:
    made = 0

    def __init__(self) -> None:
        type(self).made += 1


@task(on_failure=[dead_letter])
def send(message: Any, to: str = "everybody") -> str:
    """Tell the receiver, whose address stands in the environment."""
    answer = httpx.post(os.environ["RECEIVER"] + f"/{to}", json={"message": str(message)}, timeout=60)
    answer.raise_for_status()
    return answer.text


@task(on_failure=[dead_letter])
async def send_async(message: Any, *more: int, **options: Any) -> str:
    async with httpx.AsyncClient() as client:
        answer = await client.post(os.environ["RECEIVER"], json={"message": repr((message, more, options))})
    answer.raise_for_status()
    return answer.text


@task(on_failure=[dead_letter])
def stream(message: str) -> Any:
    yield "first"
    answer = httpx.post(os.environ["RECEIVER"], json={"message": message}, timeout=10)
    answer.raise_for_status()
    yield answer.text


@dataclass
class Mailer:
    name: str

    @task(on_failure=[dead_letter])
    def mail(self, message: str) -> str:
        return send.fn(f"{self.name}: {message}")


@resilient_task(effect=Effect(one_request=True), retry=None, on_failure=[dead_letter])
def pay(invoice: int) -> str:
    return send.fn(f"pay {invoice}")


@resilient_task(dead_letter=True, retry=Retry(attempts=2, backoff=Backoff.none()))
def notify(message: str) -> str:
    return send.fn(message)
