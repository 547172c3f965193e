"""Telling people: through a notification block of Prefect's, or any function."""

from __future__ import annotations

import inspect
import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, cast

from prefect.blocks.abstract import NotificationBlock
from prefect.runtime import flow_run
from prefect.utilities.asyncutils import run_coro_as_sync

from prefect_resilience.base.drive import Blocking, Sequence
from prefect_resilience.errors.context import ErrorContext
from prefect_resilience.errors.exceptions import ConfigurationError
from prefect_resilience.errors.secrets.redact import redact

logger: logging.Logger = logging.getLogger("prefect_resilience.agents")

Notify = NotificationBlock | str | Callable[["Notice"], Any]
"""Who tells people: a notification block, the name of a saved one ("slack-webhook/night-shift"), or a
function, plain or async, that is given the `Notice`."""


@dataclass(frozen=True)
class Notice:
    """What people are told; secrets are masked.

    `errors` has the ErrorContext of each one that was asked, by name, in their order. `url` is the page of
    the flow run, None outside of one.

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
    """A notice that says what each one answered, and where to look."""
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


def told(notify: Notify, notice: Notice) -> Sequence[str | None]:
    """Tell people; says why when they could not be told. Never raises: what failed before is what counts."""
    return (yield Blocking(tell, (notify, notice)))


def tell(notify: Notify, notice: Notice) -> str | None:
    """As `told`, for a plain caller."""
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
    except Exception as failure:  # noqa: BLE001 - whatever it is, the chain's own failure is what counts
        why = redact(f"the notification failed: {failure!r}")
        logger.error("%s: %s", notice.subject, why)
        return why
    return None


def _waited_for(answer: Any) -> None:
    if inspect.isawaitable(answer):
        run_coro_as_sync(_awaited(answer))


async def _awaited(answer: Any) -> Any:
    return await answer
