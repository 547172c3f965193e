"""People: approvals, typed answers, and a person as the last step of a chain."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any
from uuid import uuid4

from prefect.blocks.abstract import NotificationBlock
from prefect.context import FlowRunContext
from prefect.runtime import flow_run
from prefect.tasks import Task
from prefect.utilities.asyncutils import run_coro_as_sync
from typing_extensions import TypeVar

from prefect_resilience.base.durations import Duration, seconds_of
from prefect_resilience.base.naming import digest
from prefect_resilience.base.outcomes import is_awaitable, last
from prefect_resilience.base.text import one_line
from prefect_resilience.errors.context import ErrorContext
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.errors.secrets.redact import redact
from prefect_resilience.graphs.agents.edge.asking import POLL_SECONDS, Approval, Question
from prefect_resilience.graphs.agents.trace import NotAnswered, PersonNeeded, Rejected, Trace, trace

logger: logging.Logger = logging.getLogger("prefect_resilience.agents")

Notify = NotificationBlock | Callable[["Notice"], Any]
"""A notification block, or a function of the `Notice`, plain or async."""


@dataclass(frozen=True)
class Notice:
    """A notification for people; secrets are masked.

    `chain` is the name of the chain, or of the person who is asked alone.
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
    if notify is not None and not isinstance(notify, NotificationBlock) and not callable(notify):
        raise ConfigurationError(f"{what} takes a notification block or a function, not {notify!r}")


def tell(notify: Notify, notice: Notice) -> str | None:
    """Send the notice; returns why it could not be sent, None if it was. Never raises."""
    try:
        if isinstance(notify, NotificationBlock):
            with notify.raise_on_failure():
                _wait_for(notify.notify(notice.body, notice.subject))
        else:
            _wait_for(notify(notice))
    except Exception as failure:  # noqa: BLE001 - the chain's own failure is more important
        why = redact(f"the notification failed: {failure!r}")
        logger.error("%s: %s", notice.subject, why)
        return why
    return None


def _wait_for(answer: Any) -> None:
    if is_awaitable(answer):
        run_coro_as_sync(last(answer))


@dataclass(frozen=True)
class Person:
    """A person who answers a question in the Prefect UI: alone, or as the last step of a chain.

        Person("operator", answer=Spec, timeout=3600).ask("Which machine replaces db-7?")
        AgentChain("builder", ["builder-simple", Person("manual-mode", answer=Spec, timeout=3600)])

    The flow run is paused, and its page in the Prefect UI has a form for the answer. `ask` needs a flow run.
    A chain outside of a flow run, or without an answer in time, raises `PersonNeeded`.

    name: of the person or the role.
    answer: the pydantic model, or the type, of the answer in the form.
    question: the text above the form in a chain, a template over the call's arguments, as in "Please build
        {spec}". The agents' errors are listed below it.
    timeout: the seconds that the run waits for an answer. poll_interval: the seconds between two polls.
    notify: a notification block, or a function of the `Notice`.
    degraded: whether the run ends `Degraded` after this answer, in a chain.
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

    def ask(self, question: str) -> Any:
        """Pause the flow run until the question is answered, and return the answer.

        The question is a task run of its own, named after the question. An answer counts for the whole flow
        run: a retry or a recovery uses it, and does not repeat the question. Raises `NotAnswered` after
        `timeout`, and ConfigurationError outside of a flow run.
        """
        return self._alone(question, isasync=False)()

    async def aask(self, question: str) -> Any:
        """As `ask`, without blocking the event loop."""
        return await self._alone(question, isasync=True)()

    def _alone(self, question: str, *, isasync: bool) -> Task[[], Any]:
        context = FlowRunContext.get()
        if context is None:
            raise ConfigurationError(
                f"there is no flow run that could wait for the answer to {question!r}: ask inside of a @flow"
            )
        text, pauses = redact(question), context.observed_flow_pauses
        key = digest(f"{self.name}\n{text}")
        pauses[key] = pauses.get(key, 0) + 1  # the same text once more is another question
        announce = None
        if self.notify is not None:
            notice = notice_of(self.name, f"{self.name}: {one_line(text)}", {}, text)
            announce = partial(tell, self.notify, notice)
        return Question(self, text, f"{key}-{pauses[key]}", announce).task(text, isasync=isasync)


A = TypeVar("A", bound=Approval, default=Approval)


def approve(
    question: str,
    *,
    timeout: Duration = 3600,
    notify: Notify | None = None,
    name: str = "approve",
    answer: type[A] = Approval,  # pyright: ignore[reportArgumentType]
    required: bool = False,
    poll_interval: Duration = POLL_SECONDS,
) -> A:
    """Pause the flow run until a person approves or rejects, and return the `Approval`.

        if approve("Send the report to 1,204 customers?", timeout="8h"):
            send_report()

    question: the text above the form in the Prefect UI, also the name of the task run.
    timeout: how long the run waits for the answer: seconds, or a duration such as "8h".
    notify: gets a `Notice` with the question and the URL of the run: a notification block or a function.
    name: the name of the task, such as the role of the person.
    answer: `Approval`, or a subclass of it with more fields for the form.
    required: a rejection raises `Rejected`.
    poll_interval: the time between two polls of the Prefect API, in seconds.

    An answer counts for the whole flow run: a retry or a recovery uses it, and does not repeat the question.
    Raises `NotAnswered` after `timeout`, and ConfigurationError outside of a flow run.
    """
    approver = _approver(name, answer, timeout, poll_interval, notify)
    return _decided(approver.ask(question), question, required)


async def aapprove(
    question: str,
    *,
    timeout: Duration = 3600,
    notify: Notify | None = None,
    name: str = "approve",
    answer: type[A] = Approval,  # pyright: ignore[reportArgumentType]
    required: bool = False,
    poll_interval: Duration = POLL_SECONDS,
) -> A:
    """As `approve`, without blocking the event loop."""
    approver = _approver(name, answer, timeout, poll_interval, notify)
    return _decided(await approver.aask(question), question, required)


def _approver(name: str, answer: Any, timeout: Any, poll_interval: Any, notify: Any) -> Person:
    if not (isinstance(answer, type) and issubclass(answer, Approval)):
        raise ConfigurationError(
            f"approve(answer={answer!r}): write a subclass of Approval, or use Person(answer=...).ask(...)"
        )
    timeout, poll_interval = seconds_of(timeout) or timeout, seconds_of(poll_interval) or poll_interval
    return Person(name, answer, timeout=timeout, poll_interval=poll_interval, notify=notify)


def _decided(decision: A, question: str, required: bool) -> A:
    if required and not decision:
        raise Rejected(redact(question), decision)
    return decision


@dataclass(frozen=True, eq=False)
class PersonStep:
    """The person as a fallback: pauses the flow run, in a task run of its own, and gives the answer.

    Under an async agent it waits in a thread.
    """

    person: Person
    chain: str
    first: str

    def __call__(self, error: ErrorContext, **arguments: Any) -> Any:
        person = self.person
        chain_trace = trace.get() or Trace()
        errors = {self.first: error, **chain_trace.errors}
        question = _filled(person.question, arguments)
        notice = notice_of(self.chain, f"{self.chain}: {person.name} is asked", errors, question)
        trouble = None if person.notify is None else tell(person.notify, notice)
        try:
            if FlowRunContext.get() is None:
                raise RuntimeError("there is no flow run that could wait for it")
            return Question(person, notice.body, uuid4().hex).task(person.name)()
        except Exception as failure:
            # Raised by the task that waits for the answer
            why = str(failure) if type(failure) is RuntimeError else repr(failure)
            if isinstance(failure, NotAnswered):
                why = f"there was no answer within {person.timeout:g} s"
            reason = "; ".join(redact(part) for part in (why, trouble) if part)
            chain_trace.person_needed = PersonNeeded(self.chain, person.name, reason)
            raise chain_trace.person_needed from failure


def _filled(question: str, arguments: Mapping[str, Any]) -> str:
    try:
        return question.format_map(arguments)
    except Exception:  # noqa: BLE001 - a question with unfilled fields is still readable
        return question
