"""What the limits share: their names, and what a caller who was let in holds."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, TypeVar, cast
from uuid import uuid4

from pydantic import PrivateAttr, field_validator
from typing_extensions import Self

from prefect_resilience.base.naming import fill, shorten, template_fields
from prefect_resilience.base.policy import Policy
from prefect_resilience.base.wrapping import Guarding
from prefect_resilience.errors.exceptions import ConfigurationError

if TYPE_CHECKING:
    from prefect_resilience.guards.limits.leases import Lease
    from prefect_resilience.guards.limits.line import Place

F = TypeVar("F", bound=Callable[..., Any])


@dataclass(slots=True, eq=False)
class Ticket:
    """What a caller who was let in holds, and hands in when it leaves."""

    place: Place | None = None
    lease: Lease | None = None


class Limit(Guarding, Policy):
    """The base of the limits on how many calls there may be.

    `name` may be a template over a task's parameters, as in "llm:{provider}". Limits of the same name are
    one limit in this process, and in a flow or task run in the whole fleet; one without a name is its own.
    """

    _kind: ClassVar[str] = "limit"

    name: str | None = None
    _own: str = PrivateAttr(default="")
    _literal: bool = PrivateAttr(default=False)

    def model_post_init(self, context: Any, /) -> None:
        if self.name is None:
            self._own = uuid4().hex  # travels with copies and pickles, so that they stay the same limit

    @field_validator("name")
    @classmethod
    def _name_can_be_read(cls, name: str | None) -> str | None:
        if name is not None:
            template_fields(name, "limit")
        return name

    # -- names

    @property
    def fields(self) -> tuple[str, ...]:
        """The parameters that the name needs."""
        return () if self.name is None or self._literal else template_fields(self.name, "limit")

    def _key(self, name: str | None) -> str:
        """What this process knows the limit by: its settled name, or what is its own."""
        # Read from where pydantic keeps it: its way there would be a tenth of what a limit costs.
        return name or cast("dict[str, str]", self.__pydantic_private__)["_own"]

    def bind(self, parameters: Mapping[str, Any]) -> Self:
        """The limit for these parameters: itself without fields, else one with the name filled in.

        Raises ConfigurationError when a parameter is missing.
        """
        if self.name is None or not self.fields:
            return self
        bound = self.model_copy(update={"name": fill(self.name, parameters, "limit")})
        bound._literal = True
        return bound

    def settled_name(self) -> str | None:
        """The name, with nothing left to fill in; ConfigurationError while it is a template."""
        if self.name is None or self._literal:
            return self.name
        fields = template_fields(self.name, "limit")
        if fields:
            raise ConfigurationError(
                f"the limit's name {self.name!r} is a template: call .bind({{{fields[0]!r}: ...}}) first, or "
                "decorate a function that has the parameter"
            )
        return shorten(self.name.format())

    def __call__(self, fn: F) -> F:
        """Decorate a function: plain, async, generator or async generator.

        The name's fields are filled from the arguments of each call. A generator holds its place from its
        first item to its end.
        """
        missing = [field for field in self.fields if field not in inspect.signature(fn).parameters]
        if missing:
            raise ConfigurationError(
                f"the limit's name {self.name!r} cannot be filled in: {fn.__name__} has no parameter "
                f"{missing[0]!r}"
            )
        return super().__call__(fn)
