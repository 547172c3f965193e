"""A person as the last step of a chain."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any, cast

from prefect.blocks.abstract import NotificationBlock
from prefect.cache_policies import NO_CACHE
from prefect.context import FlowRunContext
from prefect.exceptions import FlowPauseTimeout
from prefect.flow_runs import apause_flow_run
from prefect.input import RunInput
from prefect.input.run_input import run_input_subclass_from_type
from prefect.runtime import flow_run
from prefect.tasks import Task
from prefect.utilities.asyncutils import run_coro_as_sync
from pydantic import BaseModel, create_model

from prefect_resilience.errors.context import ErrorContext
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.graphs.agents.trace import PersonNeeded, Trace, trace

logger: logging.Logger = logging.getLogger("prefect_resilience.agents")

Notify = NotificationBlock | str | Callable[["Notice"], Any]
"""A notification block, the name of a saved one ("slack-webhook/night-shift"), or a function of the `Notice`,
plain or async."""


@dataclass(frozen=True)
class Notice:
    """A notification for people; secrets are masked.

    `errors` has the ErrorContext of each failed step, by name, in their order. `url` is the page of the flow
    run, None outside of a run.

    Example:
        >>> told: list[Notice] = []
        >>> chain = AgentChain("exact", agents={"exact": int}, notify=told.append)
        >>> try:
        ...     chain.call("many")
        ... except ValueError:
        ...     print(sorted(told[0].errors))
        ['exact']
    """

    subject: str
    body: str
    chain: str
    errors: Mapping[str, ErrorContext] = field(default_factory=dict[str, ErrorContext])
    url: str | None = None


def notice_of(chain: str, subject: str, errors: Mapping[str, ErrorContext], more: str = "") -> Notice:
    """A notice with the error of each step and the URL of the run."""
    url = flow_run.get_flow_run_ui_url() if flow_run.get_id() else None
    lines = [f"- {name}: {context.summary()}" for name, context in errors.items()]
    parts = [more, "\n".join(lines), url or ""]
    body = redact("\n\n".join(part for part in parts if part))
    return Notice(redact(subject), body, chain, dict(errors), url)


def check_notify(what: str, notify: Any) -> None:
    if notify is not None and not isinstance(notify, NotificationBlock | str) and not callable(notify):
        raise ConfigurationError(
            f"{what} tells people through a notification block, the name of one such as "
            f'"slack-webhook/night-shift", or a function of the Notice, not {notify!r}'
        )


def tell(notify: Notify, notice: Notice) -> str | None:
    """Send the notice; returns why it could not be sent, None if it was. Never raises."""
    try:
        if isinstance(notify, str):
            from prefect.blocks.core import Block

            notify = cast("NotificationBlock", Block.load(notify, _sync=True))  # pyright: ignore
        if isinstance(notify, NotificationBlock):
            with notify.raise_on_failure():
                answer: Any = notify.notify(notice.body, notice.subject)
                _waited_for(answer)
        else:
            _waited_for(notify(notice))
    except Exception as failure:  # noqa: BLE001 - the chain's own failure is more important
        why = redact(f"the notification failed: {failure!r}")
        logger.error("%s: %s", notice.subject, why)
        return why
    return None


def _waited_for(answer: Any) -> None:
    if inspect.isawaitable(answer):
        run_coro_as_sync(_awaited(answer))


async def _awaited(answer: Any) -> Any:
    return await answer


POLL_SECONDS = 10.0


@dataclass(frozen=True)
class Person:
    """A person as the last step of a chain, to answer if no agent can.

        AgentChain("builder", ["builder-simple", Person("manual-mode", answer=Spec, timeout=3600)])

    A flow run is paused, and its page in the Prefect UI has a form for the answer. Outside of a flow run, and
    if there is no answer in time, the chain raises `PersonNeeded`. In both cases `notify` gets a `Notice`.

    answer: the pydantic model, or the type, of the answer in the form.
    question: the text above the form, a template over the call's arguments, as in "Please build {spec}". The
        agents' errors are listed below it.
    timeout: the seconds that the run waits for an answer. poll_interval: the seconds between two polls.
    notify: a notification block, the name of a saved one, or a function of the `Notice`.
    degraded: whether the run ends `Degraded` after this answer.
    """

    name: str = "a person"
    answer: Any = str
    question: str = "No agent could do it. Please answer in their place."
    timeout: float = 3600.0
    poll_interval: float = POLL_SECONDS
    notify: Notify | None = field(default=None, repr=False)
    degraded: bool = False

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not self.name.strip():  # pyright: ignore[reportUnnecessaryIsInstance]
            raise ConfigurationError(f'a person needs a name, as in Person("manual-mode"), not {self.name!r}')
        for name in ("timeout", "poll_interval"):
            seconds = getattr(self, name)
            if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not seconds > 0:
                raise ConfigurationError(f"Person({name}={seconds!r}): write seconds above 0")
        check_notify(f"Person({self.name!r}, notify=...)", self.notify)

    @property
    def place(self) -> str:
        """The name of this step in messages."""
        return f"Person({self.name!r})"

    def named(self, name: str) -> Person:
        """The same person under the name that a chain uses."""
        return replace(self, name=name)


@dataclass(frozen=True, eq=False)
class PersonStep:
    """The person as a fallback: pauses the flow run, in a task run of its own, and gives the answer."""

    person: Person
    chain: str
    first: str

    @property
    def name(self) -> str:
        return self.person.name

    @property
    def isasync(self) -> bool:
        return False  # under an async agent it waits in a thread

    def __call__(self, error: ErrorContext, **arguments: Any) -> Any:
        person = self.person
        here = trace.get() or Trace()
        errors = {self.first: error, **here.errors}
        question = _filled(person.question, arguments)
        notice = notice_of(self.chain, f"{self.chain}: {person.name} is asked", errors, question)
        trouble = None if person.notify is None else tell(person.notify, notice)
        try:
            if FlowRunContext.get() is None:
                raise RuntimeError("there is no flow run that could wait for it")
            return self._asked(notice.body)
        except Exception as failure:
            # Raised by the task that waits for the answer
            why = str(failure) if type(failure) is RuntimeError else repr(failure)
            told = "; ".join(redact(part) for part in (why, trouble) if part)
            here.person_needed = PersonNeeded(self.chain, person.name, told)
            raise here.person_needed from failure

    def _asked(self, question: str) -> Any:
        person = self.person
        shown = person.name.replace("{", "{{").replace("}", "}}")
        asking: Task[..., Any] = Task(
            fn=_pausing(person),
            name=person.name,
            task_run_name=shown,
            retries=0,
            cache_policy=NO_CACHE,
        )
        return cast("Callable[..., Any]", asking)(question)


def _pausing(person: Person) -> Callable[[str], Any]:
    form, opened = _form(person.answer)

    def wait_for_answer(question: str) -> Any:
        asked = form.with_initial_data(description=question)
        waiting = apause_flow_run(
            wait_for_input=asked,
            timeout=cast("int", person.timeout),
            poll_interval=cast("int", person.poll_interval),
        )
        try:
            return opened(run_coro_as_sync(waiting))
        except FlowPauseTimeout:
            raise RuntimeError(f"nobody answered within {person.timeout:g} s") from None

    return wait_for_answer


def _form(wanted: Any) -> tuple[type[RunInput], Callable[[Any], Any]]:
    """The form, and a function that gets the answer from it."""
    if isinstance(wanted, type) and issubclass(wanted, BaseModel):
        model = wanted
        form = cast("type[RunInput]", run_input_subclass_from_type(model))
        if issubclass(model, RunInput):
            return form, lambda given: given
        return form, lambda given: model.model_validate(given.model_dump(include=set(model.model_fields)))
    made = create_model("Answer", __base__=RunInput, value=cast("Any", (wanted, ...)))
    return made, lambda given: given.value


def _filled(question: str, arguments: Mapping[str, Any]) -> str:
    try:
        return question.format_map(arguments)
    except Exception:  # noqa: BLE001 - a question with unfilled fields is still readable
        return question
