"""A question to a person: the flow run is paused, and its page in the Prefect UI has a form."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Generator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from time import monotonic
from typing import TYPE_CHECKING, Annotated, Any, cast
from uuid import UUID, uuid4

from prefect.cache_policies import NO_CACHE
from prefect.client.orchestration import PrefectClient, get_client
from prefect.client.schemas.objects import FlowRunInput
from prefect.context import FlowRunContext
from prefect.input import RunInput, keyset_from_paused_state
from prefect.input.run_input import run_input_subclass_from_type
from prefect.logging import get_run_logger
from prefect.states import Paused, Running
from prefect.tasks import Task
from prefect.utilities.asyncutils import run_coro_as_sync
from pydantic import BaseModel, Field, WithJsonSchema, create_model

from prefect_resilience.base.text import one_line
from prefect_resilience.errors.classify.classify import classify
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.errors.taxonomy import bounded
from prefect_resilience.graphs.agents.trace import NotAnswered

if TYPE_CHECKING:
    from prefect_resilience.graphs.agents.edge.person import Person

POLL_SECONDS = 10.0
GRACE_SECONDS = 60
"""Prefect fails a flow run when its pause expires. The pause expires this much later than our wait ends."""
LONGEST_NAME = 120


class Approval(BaseModel, frozen=True):
    """A person's decision, from `approve`. It is true if approved, so that `if approve(...):` works.

    approved: the decision. comment: the person's comment, or None. answered_at: the time of the answer.

    A subclass adds fields to the form: `class Release(Approval): version: str`, then `answer=Release`.

    Example:
        >>> decision = Approval(approved=False, comment="the wrong month")
        >>> "send" if decision else decision.comment
        'the wrong month'
    """

    approved: bool
    comment: str | None = None
    answered_at: datetime | None = None

    def __bool__(self) -> bool:
        return self.approved


_prepared: list[list[Any]] = []
"""The answers of each `prepared` block that is open in this process."""


@contextmanager
def prepared(answers: list[Any]) -> Generator[None]:
    """Give these answers within the block, in order, without a pause."""
    _prepared.append(answers)
    try:
        yield
    finally:
        _prepared.pop()


@dataclass(frozen=True)
class Question:
    """A question in a flow run. `key` identifies it there; `announce` is called when the run is paused."""

    person: Person
    text: str
    key: str
    announce: Callable[[], Any] | None = None

    def task(self, shown: str, *, isasync: bool = False) -> Task[[], Any]:
        """The task that waits for the answer and returns it."""

        async def wait_for_answer() -> Any:
            return await self._answered()

        def block_for_answer() -> Any:
            return run_coro_as_sync(self._answered())

        shown = bounded(one_line(shown), LONGEST_NAME).replace("{", "{{").replace("}", "}}")
        fn = wait_for_answer if isasync else block_for_answer
        return Task(fn=fn, name=self.person.name, task_run_name=shown, retries=0, cache_policy=NO_CACHE)

    async def _answered(self) -> Any:
        """The answer. Raises NotAnswered."""
        form, opened = _form(self.person.answer)
        if _prepared:
            values, at = self._from_prepared(), None
        else:
            answer = await self._from_form(form.with_initial_data(description=self.text))
            values, at = (None, None) if answer is None else (answer.decoded_value, answer.created)
        if values is None:
            raise NotAnswered(self.text, self.person.timeout)
        return opened(form(**values), at or datetime.now(UTC))

    def _from_prepared(self) -> dict[str, Any] | None:
        if not _prepared[-1]:
            raise ConfigurationError(f"answers(...) has no answer left for {self.text!r}")
        answer = _prepared[-1].pop(0)
        if isinstance(answer, bool):
            return {"approved": answer}
        mapping = isinstance(answer, Mapping)
        return cast("dict[str, Any] | None", answer) if answer is None or mapping else {"value": answer}

    async def _from_form(self, form: type[RunInput]) -> FlowRunInput | None:
        """The answer that the run has already, or for which it is paused now; None without one in time."""
        context, logger = FlowRunContext.get(), get_run_logger()
        assert context is not None
        assert context.flow_run is not None
        run_id = context.flow_run.id
        async with get_client() as client:
            if (answer := await self._given(client, run_id)) is not None:
                logger.info("Using the answer that was given before: %s", self.text)
                return answer
            if self.announce is not None:
                await asyncio.to_thread(self.announce)
            logger.info("Waiting up to %g s for an answer: %s", self.person.timeout, self.text)
            until = monotonic() + self.person.timeout
            while True:
                seconds_left = until - monotonic()
                try:
                    answer = await self._polled(client, run_id, form, seconds_left)
                    if answer is not None or seconds_left <= 0:
                        return answer
                except Exception as error:
                    if not classify(error).retryable or seconds_left < -GRACE_SECONDS:
                        raise
                    logger.warning("The Prefect API is unavailable, polling again: %s", redact(repr(error)))
                await asyncio.sleep(max(min(self.person.poll_interval, seconds_left), 0.05))

    async def _polled(
        self, client: PrefectClient, run_id: UUID, form: type[RunInput], left: float
    ) -> FlowRunInput | None:
        """The answer, if there is one. Pauses a running run, and ends its own pause when the time is up."""
        state = (await client.read_flow_run(run_id)).state
        answer = await self._given(client, run_id)
        if answer is not None or state is None:
            return answer
        if left <= 0:
            if (state.state_details.pause_key or "").startswith(f"{self.key}-"):
                await client.set_flow_run_state(run_id, Running())
            return await self._given(client, run_id)
        if state.is_running():  # not paused yet, or resumed without an answer
            await self._pause(client, run_id, form, left)
        return None

    async def _given(self, client: PrefectClient, run_id: UUID) -> FlowRunInput | None:
        """The answer that the run has."""
        inputs = await client.filter_flow_run_input(run_id, f"paused-{self.key}-", 200, set())
        return next((run_input for run_input in inputs if run_input.key.endswith("-response")), None)

    async def _pause(self, client: PrefectClient, run_id: UUID, form: type[RunInput], left: float) -> None:
        """Pause the run with the form. Prefect rejects this while the run is paused for another question."""
        key = f"{self.key}-{uuid4().hex[:8]}"
        paused = Paused(timeout_seconds=math.ceil(left) + GRACE_SECONDS, pause_key=key)
        keys = keyset_from_paused_state(paused)
        paused.state_details.run_input_keyset = cast("dict[str, str]", keys)
        await client.set_flow_run_state(run_id, paused)
        # Afterwards: Prefect 3.9 removes what was stored under these keys before the pause.
        await form.asave(keys, run_id)


_TextBox = Annotated[str | None, WithJsonSchema({"type": "string", "title": "Comment"})]
"""A plain field: for `str | None` the UI would ask for the type first."""


def _form(wanted: Any) -> tuple[type[RunInput], Callable[[Any, datetime], Any]]:
    """The form, and a function that makes the answer from it and its time."""
    if isinstance(wanted, type) and issubclass(wanted, Approval):
        fields: dict[str, Any] = {name: (info.annotation, info) for name, info in wanted.model_fields.items()}
        del fields["answered_at"]
        # The UI shows a switch that is off: that is the answer unless a person touches it.
        fields["approved"] = (bool, Field(default=False))
        fields["comment"] = (_TextBox, Field(default=""))
        form = create_model(wanted.__name__, __base__=RunInput, **fields)
        return form, lambda given, at: wanted(
            **(given.model_dump() | {"comment": given.comment or None}), answered_at=at
        )
    if isinstance(wanted, type) and issubclass(wanted, BaseModel):
        model = wanted
        form = cast("type[RunInput]", run_input_subclass_from_type(model))
        if issubclass(model, RunInput):
            return form, lambda given, _at: given
        names = set(model.model_fields)
        return form, lambda given, _at: model.model_validate(given.model_dump(include=names))
    form = create_model("Answer", __base__=RunInput, value=cast("Any", (wanted, ...)))
    return form, lambda given, _at: given.value
